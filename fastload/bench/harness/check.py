"""The checks made before anything is timed: a subject's values are right, to within rounding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice

import torch

from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD

__all__ = ["WrongValuesError", "check_batches", "check_close", "check_form", "check_normalized", "rounding"]

# (x - mean) / std rounds four quantities of at most 1 / std each, and so does x * scale + bias.
ROUNDINGS = 4


class WrongValuesError(RuntimeError):
    """A subject delivered wrong values, so its speed means nothing."""


def check_batches(
    subject: str,
    batches: Batches,
    expected: Sequence[tuple[torch.Tensor, ...]],
    *,
    dtype: torch.dtype,
    arithmetic: torch.dtype,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> None:
    """Raise ``WrongValuesError`` unless ``batches`` begins with the ``expected`` (uint8 images, labels), normalised.

    Batches are compared after all have arrived, so a batch that a later one overwrote is found.
    """
    with closing(batches):
        delivered = list(islice(batches, len(expected)))
    if len(delivered) < len(expected):
        raise WrongValuesError(f"{subject} is wrong: it ends after {len(delivered)} batches")
    for (images, labels), (uint8_images, its_labels) in zip(delivered, expected, strict=True):
        check_normalized(subject, images, uint8_images, dtype=dtype, arithmetic=arithmetic, memory_format=memory_format)
        if not torch.equal(labels.cpu(), its_labels):
            raise WrongValuesError(f"{subject} is wrong: a batch came with the labels of another")


def check_normalized(
    subject: str,
    out: torch.Tensor,
    images: torch.Tensor,
    flip: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
    arithmetic: torch.dtype,
    memory_format: torch.memory_format,
) -> None:
    """Raise ``WrongValuesError`` unless ``out`` is ``images`` (uint8) flipped and normalised.

    ``out`` is compared with the float64 result. It may differ by the rounding of arithmetic in ``arithmetic`` and of
    storing in ``dtype``.
    """
    images = images.to(out.device)
    check_form(subject, out, images.shape, dtype, memory_format)
    if flip is not None:
        images = torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images)
    mean, std = (torch.tensor(values, dtype=torch.float64, device=out.device).view(-1, 1, 1) for values in (MEAN, STD))
    exact = (images.double() / 255 - mean) / std
    computed = ROUNDINGS * rounding(arithmetic) / std
    allowed = computed + rounding(dtype) * (exact.abs() + computed)
    excess = ((out.double() - exact).abs() / allowed).nan_to_num(torch.inf).max().item()
    if excess > 1:
        raise WrongValuesError(
            f"{subject} is wrong: a value is {excess:.3g} times as far from the float64 result as computing "
            f"in {arithmetic} and storing in {dtype} can bring it"
        )


def check_form(
    subject: str, out: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    """Raise ``WrongValuesError`` unless the batch ``out`` has this shape, dtype and memory format."""
    if (out.shape, out.dtype) != (tuple(shape), dtype) or not out.is_contiguous(memory_format=memory_format):
        raise WrongValuesError(
            f"{subject} is wrong: it delivers {out.dtype} of shape {tuple(out.shape)} and strides {out.stride()}, "
            f"not {dtype} of shape {tuple(shape)} in {memory_format}"
        )


def check_close(subject: str, out: torch.Tensor, exact: torch.Tensor, allowed: float) -> None:
    """Raise ``WrongValuesError`` unless normalised values are near ``exact``.

    They may differ by ``allowed``, as a share of the images' full scale, and by rounding to their dtype.
    """
    std = torch.tensor(STD, device=out.device).view(-1, 1, 1)
    bound = allowed / std + rounding(out.dtype) * (exact.abs() + allowed / std)
    excess = float(((out.float() - exact).abs() / bound).nan_to_num(torch.inf).max())
    if excess > 1:
        raise WrongValuesError(
            f"{subject} is wrong: a value is {excess:.3g} times as far from the reference as {allowed:.2g} of full "
            f"scale and storing in {out.dtype}"
        )


def rounding(dtype: torch.dtype) -> float:
    """Return the largest relative error of rounding to the nearest number of ``dtype``."""
    return torch.finfo(dtype).eps / 2
