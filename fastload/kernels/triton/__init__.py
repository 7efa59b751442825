"""The kernels themselves, in Triton: the same names and arguments as their references."""
