"""Sums what a model or loss function returns: a scalar loss, or a dict of its terms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor

__all__ = ["total"]


def total(returned: object) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the scalar loss, and its terms if ``returned`` is a dict of them, else an empty dict.

    >>> total({"box": torch.tensor(1.0), "label": torch.tensor(2.0)})
    (tensor(3.), {'box': tensor(1.), 'label': tensor(2.)})

    Raises TypeError for anything but a scalar tensor or a mapping of names to scalar tensors.
    """
    if not isinstance(returned, Mapping):
        return _scalar(returned), {}
    if not returned:
        raise TypeError("the loss must be a scalar tensor or a dict of at least one; got an empty dict")
    losses = {name: _scalar(term, f"a dict whose {name!r} is ") for name, term in returned.items()}
    return reduce(torch.add, losses.values()), losses


def _scalar(value: object, where: str = "") -> Tensor:
    if isinstance(value, Tensor) and value.ndim == 0:
        return value
    got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise TypeError(
        f"the loss must be a scalar tensor or a dict of scalar tensors; got {where}{got}. "
        "Reduce it, such as with .mean(); pass a loss_fn if the model returns predictions; call model.train() if "
        "the model returns losses in training mode only, as torchvision's detection models do"
    )
