"""Reference implementations of the kernels in plain PyTorch: they run on the CPU and check tests and benchmarks."""

from fastload.kernels.reference.normalize import flip_normalize

__all__ = ["flip_normalize"]
