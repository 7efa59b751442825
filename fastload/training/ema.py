"""The exponential moving average of a model's weights: better to evaluate than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["EMA"]


class EMA:
    """Averages of the parameters and buffers that a model's ``state_dict`` has, on the device.

    >>> model = nn.Linear(4, 2)
    >>> ema = EMA(model, 0.9)
    >>> ema.update()
    >>> with ema.applied():  # the model computes with the averages
    ...     prediction = model(torch.randn(8, 4))

    Each update is ``average.lerp_(weight, 1 - decay)``, many tensors a launch. Integers and booleans, as batch norm's
    count of batches, are copied. ``decay`` is above 0 and below 1; others raise ValueError.
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
        """Let the next ``update`` take the buffers as they are now, whatever forward passes come before it."""
        self._sources = [weight if isinstance(weight, nn.Parameter) else weight.clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights as they are, and towards the buffers held, if any were."""
        self.refuse_if_applied()
        sources, self._sources = self._sources, self._weights
        # of parameters that FSDP2 has sharded, this rank's parts: foreach takes no mixture of these and plain buffers
        averages, sources = [_local(average) for average in self._averages], [_local(source) for source in sources]
        floating = slice(None, self._floating)
        torch._foreach_lerp_(averages[floating], sources[floating], 1 - self.decay)
        rest = slice(self._floating, None)
        if sources[rest]:
            torch._foreach_copy_(averages[rest], sources[rest])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averages for the time of the block, and its own weights back after it.

        >>> model = nn.Linear(4, 2)
        >>> with EMA(model, 0.9).applied():
        ...     ...
        Ellipsis

        A block within the block, or a training step, raises RuntimeError. What the block writes to the weights,
        or to the buffers, is written to the averages.
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
        """Raise RuntimeError if the model holds the averages at present."""
        if self._is_applied:
            raise RuntimeError("the model holds its averages: leave the block of ema.applied() first")

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages under the model's own names: ``model.load_state_dict`` takes them."""
        self.refuse_if_applied()
        return dict(self._named)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the averages from ``state``; KeyError if its names are not the model's."""
        if state.keys() != self._named.keys():
            differing = sorted(state.keys() ^ self._named.keys())
            raise KeyError(f"the averages of another model: {', '.join(differing[:5])} in one of them alone")
        with torch.no_grad():
            for name, average in self._named.items():
                average.copy_(state[name])
        self._sources = self._weights

    @torch.no_grad()
    def _swap(self) -> None:
        modules: Iterable[Any] = self._model.modules()
        for module in modules:
            if hasattr(module, "reshard"):  # FSDP2 may hold what it gathered for a forward pass, and would use it again
                module.reshard()
        for weight, average in zip(self._weights, self._averages, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def _local(tensor: Tensor) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
