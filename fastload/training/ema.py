"""``EMA``: the exponential moving average of a model's weights, which often evaluates better than the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fastload.arguments import number
from fastload.training.ranks import is_fsdp, local_part
from fastload.training.tensors import Buffers, buffer_now, described, real_view

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

    A module may write to a buffer, or, unless it shares it, assign another tensor to its name; one of another shape,
    dtype or device begins a new average. With ``static``, as CUDA graphs need it, the buffers are those that the model
    has now, for good.
    """

    def __init__(self, model: nn.Module, decay: float, *, static: bool = False) -> None:
        if not 0 < number("ema", decay) < 1:
            raise ValueError(f"ema must be a decay above 0 and below 1, such as 0.9999, or None; got {decay!r}")
        self.decay = decay
        self._model = model
        named = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
        averages = {value: value.detach().clone() for value in named.values()}  # tied weights come once
        self._named = {name: averages[value] for name, value in named.items()}
        self._weights = list(averages)
        self._averages = list(averages.values())
        self._buffers = [place for place, each in enumerate(self._weights) if not isinstance(each, nn.Parameter)]
        owners = {} if static else _owners(model)
        self._owned = [(i, *owners[self._weights[i]]) for i in self._buffers if self._weights[i] in owners]
        self._assigned: set[int] = set()
        self._sources = self._weights
        self._held: list[Tensor] = []  # copies of buffers, at addresses that last, as CUDA graphs need them
        self._is_applied = False
        self._sort()

    @torch.no_grad()
    def hold_buffers(self) -> None:
        """Keep copies of the buffers for the next ``update``, since forward passes before it change them."""
        self._find_buffers()
        buffers = [self._weights[place] for place in self._buffers]
        if not self._held:
            self._held = [buffer.clone() for buffer in buffers]
        elif buffers:
            torch._foreach_copy_(self._held, buffers)
        self.use_held()

    def use_held(self) -> None:
        """Take the copies for the next ``update``, where ``hold_buffers`` is replayed as a CUDA graph."""
        self._sources = list(self._weights)
        for place, held in zip(self._buffers, self._held, strict=True):
            self._sources[place] = held

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights, and towards the buffers kept by ``hold_buffers`` if it was called."""
        self.refuse_if_applied()
        if self._sources is self._weights:
            self._find_buffers()
        sources, self._sources = self._sources, self._weights
        averages, weights = self._local_parts(self._averaged, sources)
        if averages:
            torch._foreach_lerp_(averages, weights, 1 - self.decay)
        averages, weights = self._local_parts(self._copied, sources)
        if averages:
            torch._foreach_copy_(averages, weights)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the model computes with the averages; its own weights come back after it.

        >>> model = nn.Linear(4, 2)
        >>> with EMA(model, 0.9).applied():
        ...     ...
        Ellipsis

        Inside it, a second ``applied`` and a training step raise RuntimeError. Writes to the model's weights or buffers
        go to the averages; a buffer that is assigned there is dropped.
        """
        self.refuse_if_applied()
        self._find_buffers()
        own = [(i, buffers, name) for i, buffers, name in self._owned if buffer_now(buffers, name) is self._weights[i]]
        self._swap()
        for place, buffers, name in own:
            if place in self._assigned:
                buffers[name] = self._averages[place]
        self._is_applied = True
        try:
            yield
        finally:
            for place, buffers, name in own:
                buffers[name] = self._weights[place]
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
        self.refuse_if_applied()
        self._find_buffers()
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
        for place, (weight, average) in enumerate(zip(self._weights, self._averages, strict=True)):
            if place not in self._assigned:  # nothing is written to what a module assigned: it may be part of a batch
                kept = weight.clone()
                weight.copy_(average)
                average.copy_(kept)

    @torch.no_grad()
    def _find_buffers(self) -> None:
        """Look up the buffers that the modules have now."""
        for place, buffers, name in self._owned:
            buffer, known = buffer_now(buffers, name), self._weights[place]
            if buffer is None or buffer is known:
                continue
            self._weights[place] = buffer
            self._assigned.add(place)
            if _kind(buffer) != _kind(known):
                self._begin_anew(place)

    def _begin_anew(self, place: int) -> None:
        self._averages[place].data = self._weights[place].detach().clone()  # state_dict() names this tensor
        self._held, self._sources = [], self._weights
        self._sort()

    def _sort(self) -> None:
        self._averaged = [place for place, average in enumerate(self._averages) if _is_averaged(average)]
        self._copied = [place for place, average in enumerate(self._averages) if not _is_averaged(average)]

    def _local_parts(self, places: list[int], sources: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        # foreach takes no mixture of sharded parameters and plain buffers.
        averages, weights = ([real_view(local_part(of[place])) for place in places] for of in (self._averages, sources))
        return averages, weights


def _owners(model: nn.Module) -> dict[Tensor, tuple[Buffers, str]]:
    """Where a model has its buffers: by each, those of its module, and its name there. None that modules share."""
    modules = [module._buffers for module in model.modules()]  # noqa: SLF001  (named_buffers() gives no module)
    places = [(each, buffers, name) for buffers in modules for name, each in buffers.items() if each is not None]
    counts = Counter(each for each, *_ in places)
    return {each: (buffers, name) for each, buffers, name in places if counts[each] == 1}


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
