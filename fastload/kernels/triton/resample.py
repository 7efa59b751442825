"""``resample`` in Triton."""

from fastload.kernels.triton.resample_planar import resample

__all__ = ["resample"]
