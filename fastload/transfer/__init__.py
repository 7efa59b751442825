"""Copies from host to device."""
