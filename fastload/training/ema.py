"""``EMA``: the exponential moving average of a model's weights, which often evaluates better than the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fastload.arguments import number
from fastload.training.ranks import is_fsdp, local_part
from fastload.training.tensors import described, real_view

__all__ = ["EMA"]


class EMA:
    """Averages of the parameters and buffers in a model's ``state_dict``, on their device and in their dtypes.

    >>> model = nn.Linear(4, 2)
    >>> ema = EMA(model, 0.9)
    >>> ema.update()
    >>> with ema.applied():  # the model computes with the averages
    ...     prediction = model(torch.randn(8, 4))

    Each update is ``average.lerp_(weight, 1 - decay)``, with many tensors a launch; complex tensors are averaged too.
    Integers and booleans, such as batch norm's count of batches, are copied. ``decay`` must be above 0 and below 1;
    else ValueError.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < number("ema", decay) < 1:
            raise ValueError(f"ema must be a decay above 0 and below 1, such as 0.9999, or None; got {decay!r}")
        self.decay = decay
        self._model = model
        named = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
        averages = {value: value.detach().clone() for value in named.values()}  # tied weights come once
        self._named = {name: averages[value] for name, value in named.items()}
        self._weights = sorted(averages, key=lambda weight: not _is_averaged(weight))
        self._averages = [averages[weight] for weight in self._weights]
        self._averaged = sum(map(_is_averaged, self._weights))
        self._sources = self._weights
        self._held: dict[Tensor, Tensor] = {}  # copies of buffers, at addresses that last, as CUDA graphs need them
        self._is_applied = False

    @torch.no_grad()
    def hold_buffers(self) -> None:
        """Keep copies of the buffers for the next ``update``, since forward passes before it change them."""
        buffers = [weight for weight in self._weights if not isinstance(weight, nn.Parameter)]
        if not self._held:
            self._held = {buffer: buffer.clone() for buffer in buffers}
        elif buffers:
            torch._foreach_copy_(list(self._held.values()), buffers)
        self.use_held()

    def use_held(self) -> None:
        """Take the copies for the next ``update``, where ``hold_buffers`` is replayed as a CUDA graph."""
        self._sources = [self._held.get(weight, weight) for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights, and towards the buffers kept by ``hold_buffers`` if it was called."""
        self.refuse_if_applied()
        sources, self._sources = self._sources, self._weights
        # foreach takes no mixture of sharded parameters and plain buffers.
        averages, sources = [[real_view(local_part(each)) for each in part] for part in (self._averages, sources)]
        averaged, copied = slice(None, self._averaged), slice(self._averaged, None)
        if sources[averaged]:
            torch._foreach_lerp_(averages[averaged], sources[averaged], 1 - self.decay)
        if sources[copied]:
            torch._foreach_copy_(averages[copied], sources[copied])

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
        """Copy the averages from ``state``; TypeError or ValueError if they are not those of this model."""
        self.check_state(state)
        with torch.no_grad():
            for name, average in self._named.items():
                average.copy_(state[name])
        self._sources = self._weights

    def check_state(self, state: object) -> None:
        """Raise TypeError or ValueError unless ``state`` has a tensor of the right shape for each name of the model."""
        if not isinstance(state, Mapping):
            raise TypeError(f"the averages must be what ema.state_dict() returned; got a {type(state).__name__}")
        if state.keys() != self._named.keys():
            differing = sorted(map(str, state.keys() ^ self._named.keys()))
            raise ValueError(f"the averages are of another model: {', '.join(differing[:5])} in only one of the two")
        for name, average in self._named.items():
            if not isinstance(state[name], Tensor) or state[name].shape != average.shape:
                raise ValueError(
                    f"the averages are of another model: {name} must be a tensor of shape {tuple(average.shape)}; got "
                    f"{described(state[name])}"
                )

    @torch.no_grad()
    def _swap(self) -> None:
        for module in self._model.modules():
            if is_fsdp(module):  # else its next forward pass may use weights gathered before
                module.reshard()
        for weight, average in zip(self._weights, self._averages, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
