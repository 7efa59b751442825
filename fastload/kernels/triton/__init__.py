"""Triton kernels and their launchers, with the names and arguments of the references."""
