"""``EMA``: the exponential moving average of a model's weights, which often evaluates better than the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fastload.training.ranks import is_fsdp, local_part

__all__ = ["EMA"]


class EMA:
    """Averages of the parameters and buffers in a model's ``state_dict``, on their device and in their dtypes.

    >>> model = nn.Linear(4, 2)
    >>> ema = EMA(model, 0.9)
    >>> ema.update()
    >>> with ema.applied():  # the model computes with the averages
    ...     prediction = model(torch.randn(8, 4))

    Each update is ``average.lerp_(weight, 1 - decay)``, with many tensors a launch. Integers and booleans, such as
    batch norm's count of batches, are copied. ``decay`` must be above 0 and below 1; else ValueError.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema must be a decay above 0 and below 1, such as 0.9999, or None; got {decay!r}")
        self.decay = decay
        self._model = model
        named = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
        averages = {value: value.detach().clone() for value in named.values()}  # tied weights come once
        self._named = {name: averages[value] for name, value in named.items()}
        self._weights = sorted(averages, key=lambda weight: not weight.is_floating_point())
        self._averages = [averages[weight] for weight in self._weights]
        self._floating = sum(weight.is_floating_point() for weight in self._weights)
        self._sources = self._weights
        self._is_applied = False

    def hold_buffers(self) -> None:
        """Keep copies of the buffers for the next ``update``, since forward passes before it change them."""
        self._sources = [weight if isinstance(weight, nn.Parameter) else weight.clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights, and towards the buffers kept by ``hold_buffers`` if it was called."""
        self.refuse_if_applied()
        sources, self._sources = self._sources, self._weights
        # foreach takes no mixture of sharded parameters and plain buffers.
        averages, sources = list(map(local_part, self._averages)), list(map(local_part, sources))
        floating = slice(None, self._floating)
        torch._foreach_lerp_(averages[floating], sources[floating], 1 - self.decay)
        rest = slice(self._floating, None)
        if sources[rest]:
            torch._foreach_copy_(averages[rest], sources[rest])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the model computes with the averages; its own weights come back after it.

        >>> model = nn.Linear(4, 2)
        >>> with EMA(model, 0.9).applied():
        ...     ...
        Ellipsis

        Inside it, a second ``applied`` and a training step raise RuntimeError. Writes to the model's weights or buffers
        go to the averages.
        """
        self.refuse_if_applied()
        self._swap()
        self._is_applied = True
        try:
            yield
        finally:
            self._swap()
            self._is_applied = False

    def refuse_if_applied(self) -> None:
        """Raise RuntimeError inside ``applied``."""
        if self._is_applied:
            raise RuntimeError("the model computes with its averages: leave the block of ema.applied() first")

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by the model's own names, for ``model.load_state_dict``; not copied."""
        self.refuse_if_applied()
        return dict(self._named)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy the averages from ``state``; KeyError if its names are not the model's."""
        if state.keys() != self._named.keys():
            differing = sorted(state.keys() ^ self._named.keys())
            raise KeyError(f"the averages are of another model: {', '.join(differing[:5])} in only one of the two")
        with torch.no_grad():
            for name, average in self._named.items():
                average.copy_(state[name])
        self._sources = self._weights

    @torch.no_grad()
    def _swap(self) -> None:
        for module in self._model.modules():
            if is_fsdp(module):  # else its next forward pass may use weights gathered before
                module.reshard()
        for weight, average in zip(self._weights, self._averages, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
