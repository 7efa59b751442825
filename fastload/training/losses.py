"""What a model or loss function returns: a scalar, or a dict of scalars to be summed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor

__all__ = ["total"]


def total(returned: object) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and, if it came as a dict, its terms."""
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
        "Reduce it, such as with .mean(); turn a prediction into a loss by a loss_fn; call model.train() if "
        "the model returns losses in training mode alone, as torchvision's detection models do"
    )
