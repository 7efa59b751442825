"""What the kernels compute, in plain PyTorch: the CPU path, the tests' truth and the benchmarks' check."""

from fastload.kernels.reference.normalize import flip_normalize

__all__ = ["flip_normalize"]
