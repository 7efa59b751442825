"""``LossTerms``: which entries of what a model or loss function returns are losses, and their sum."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from numbers import Integral, Real

import torch
from torch import Tensor

from fastload.training.tensors import described

__all__ = ["LossTerms", "Losses", "check_gradient"]

NAME_THEM = "Name the terms to be summed, such as TrainStep(..., losses={names!r})"


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """A scalar loss; its ``terms``, if it came as a dict; and ``metrics``, the dict's other scalars and numbers."""

    total: Tensor
    terms: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)


class LossTerms:
    """Sums the loss terms of a dict, and leaves its other entries out.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> returned = {"loss": weight.sum(), "accuracy": torch.tensor(0.25), "right": 2, "logits": weight * 2}
    >>> losses = LossTerms()(returned)
    >>> losses.total.item(), list(losses.terms), losses.metrics
    (2.0, ['loss'], {'accuracy': tensor(0.2500), 'right': tensor(2)})

    1. ``names``, a name or several, are the terms to be summed.
    2. Without them an entry named ``"loss"`` is the loss, as in Hugging Face's outputs. Other scalars that carry a
       gradient may be parts of it, or terms to be added to it: then ValueError asks for ``names``.
    3. Without either, all entries are summed, as torchvision's detection models mean them. Those that carry no
       gradient, such as an accuracy, are left out, with one warning.

    A loss that is no dict must be a scalar tensor; else TypeError.
    """

    def __init__(self, names: str | Sequence[str] | None = None) -> None:
        self._names = (names,) if isinstance(names, str) else names
        self._has_warned = False

    def __call__(self, returned: object) -> Losses:
        if not isinstance(returned, Mapping):
            if self._names is not None:
                raise TypeError(f"losses= names entries of a dict, but the loss is {described(returned)}. Leave it out")
            return Losses(_scalar(returned))
        if not returned:
            raise TypeError("the loss must be a scalar tensor or a dict of at least one; got an empty dict")
        names = self._names or self._default_names(returned)
        if missing := [name for name in names if name not in returned]:
            raise ValueError(f"losses= names {missing[0]!r}, but the dict has {', '.join(map(repr, returned))}")
        terms = {name: _scalar(returned[name], f"a dict whose {name!r} is ") for name in names}
        total = reduce(torch.add, terms.values())
        others = {name: _as_tensor(entry, total.device) for name, entry in returned.items() if name not in terms}
        return Losses(total, terms, _scalars(others))

    def _default_names(self, returned: Mapping[str, object]) -> list[str]:
        with_gradient = [name for name, scalar in _scalars(returned).items() if scalar.requires_grad]
        if "loss" in returned:
            return self._loss_alone(with_gradient)
        for name, entry in returned.items():
            _scalar(entry, f"a dict whose {name!r} is ")
        if not with_gradient:
            names = ", ".join(map(repr, returned))
            raise ValueError(
                f"a term of the loss must carry a gradient; got {names} without: {_why_without_gradient()}"
            )
        left_out = [name for name in returned if name not in with_gradient]
        if left_out and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{', '.join(map(repr, left_out))} of the loss's dict carries no gradient, so it is not added to the "
                f"loss; it is in the step's metrics. {NAME_THEM.format(names=tuple(with_gradient))}",
                stacklevel=6,  # the line that calls the step
            )
        return with_gradient

    def _loss_alone(self, with_gradient: list[str]) -> list[str]:
        others = [name for name in with_gradient if name != "loss"]
        if others:
            raise ValueError(
                f"the dict has 'loss' and {', '.join(map(repr, others))}, and all carry a gradient: they may be parts "
                f"of 'loss', or to be added to it. {NAME_THEM.format(names='loss')}, or losses={('loss', *others)!r}"
            )
        return ["loss"]


def check_gradient(loss: Tensor) -> None:
    """Refuse a loss that has no backward pass."""
    if not loss.requires_grad:
        raise ValueError(f"the loss must carry a gradient; got one without: {_why_without_gradient()}")


def _why_without_gradient() -> str:
    if not torch.is_grad_enabled():
        return "gradients are off here; call the step outside torch.no_grad() and torch.inference_mode()"
    return (
        "it does not depend on a parameter that requires a gradient; leave out .detach(), .item() and torch.no_grad() "
        "in model and loss, and let the parameters to be trained have requires_grad=True"
    )


def _scalars(returned: Mapping[str, object]) -> dict[str, Tensor]:
    return {name: entry for name, entry in returned.items() if isinstance(entry, Tensor) and entry.ndim == 0}


def _as_tensor(entry: object, device: torch.device) -> object:
    """Return a number as a tensor on the device, as other metrics are; what is no number as it is."""
    if not isinstance(entry, Real) or isinstance(entry, bool):
        return entry
    # Only torch.tensor() takes floats beyond float32, such as a perplexity, and only torch.full() waits for no GPU.
    try:
        value = int(entry) if isinstance(entry, Integral) else torch.tensor(float(entry), device="cpu").item()
        return torch.full((), value, device=device)
    except (OverflowError, RuntimeError):  # an integer that no tensor holds, such as a hash
        return entry


def _scalar(value: object, where: str = "") -> Tensor:
    if isinstance(value, Tensor) and value.ndim == 0:
        return value
    raise TypeError(
        f"the loss must be a scalar tensor or a dict of scalar tensors; got {where}{described(value)}. "
        "Reduce it, such as with .mean(); pass a loss_fn if the model returns predictions, or losses= with the names "
        "of the terms if it returns both; call model.train() if "
        "the model returns losses in training mode only, as torchvision's detection models do"
    )
