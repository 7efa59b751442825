"""``StageMemory``: the bytes that a training step holds after each of its stages, and their peak during it.

``TrainStep.profile_memory`` runs two real steps, and calls back at the end of each stage, when a meter is read.
Afterwards all that the steps changed is restored.
"""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastload.streams import STREAMLESS
from fastload.structure.tree import Path, map_movable, tensors
from fastload.training.tensors import buffer_now

__all__ = ["STAGES", "Reading", "StageCallback", "StageMemory", "on_host", "profile_memory", "restored"]

STAGES = ("data", "forward", "loss", "backward", "step")


class StageCallback(Protocol):
    """Called by a training step with the name of each of ``STAGES`` that it has ended."""

    def __call__(self, stage: str, /) -> None: ...


@dataclass(frozen=True)
class Reading:
    """Bytes ``allocated`` when a stage ended, and their ``peak`` during it."""

    allocated: int
    peak: int


@dataclass(frozen=True)
class StageMemory:
    """The memory of a training step by its stages, in bytes: of the first step, and of the second.

    >>> import fastload as fl
    >>> model = torch.nn.Linear(1024, 1024)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> step = fl.TrainStep(model, optimizer, torch.nn.CrossEntropyLoss())
    >>> memory = step.profile_memory((torch.randn(256, 1024), torch.zeros(256, dtype=torch.long)))
    >>> (memory.second["data"].allocated - memory.first["data"].allocated) // 2**20  # momentum: 4 bytes a weight
    4
    >>> memory.peak == memory.second["backward"].peak
    True

    ``first`` and ``second`` hold a ``Reading`` for each of ``"data"``, ``"forward"``, ``"loss"``, ``"backward"`` and
    ``"step"``. ``print(memory)`` shows a table, in MiB of 2**20 bytes; ``memory.to_json()`` is for programs.

    ``counted`` says what was counted: ``"allocator"``, all that this process has on the device, by its allocator; or
    ``"tensors"``, where there is no such count, as on the CPU: the tensors that the step, its model and its batch hold,
    without what operators need inside.
    """

    device: str
    counted: str
    first: dict[str, Reading]
    second: dict[str, Reading]

    @property
    def peak(self) -> int:
        """The most bytes at any time of the two steps."""
        return max(reading.peak for reading in chain(self.first.values(), self.second.values()))

    def to_json(self) -> str:
        """Return all of it as JSON, ``peak`` included.

        >>> readings = {"data": Reading(allocated=512, peak=1024)}
        >>> json.loads(StageMemory("cpu", "tensors", readings, {}).to_json())["first"]
        {'data': {'allocated': 512, 'peak': 1024}}
        """
        return json.dumps({**asdict(self), "peak": self.peak})

    def __str__(self) -> str:
        from rich.console import Console  # noqa: PLC0415  (not needed for training)
        from rich.table import Table  # noqa: PLC0415

        table = Table(title=f"MiB on {self.device}; peak {_mib(self.peak)}; counted: {self.counted}")
        for heading in ("", "first step", "peak", "second step", "peak"):
            table.add_column(heading, justify="right" if heading else "left")
        for stage in self.first:
            readings = (self.first[stage], self.second[stage])
            table.add_row(stage, *(_mib(size) for each in readings for size in (each.allocated, each.peak)))
        console = Console(width=100, color_system=None)
        with console.capture() as captured:
            console.print(table)
        return captured.get().rstrip()


TrainBatch = Callable[[Any, StageCallback], bool]  # calls back at each stage's end; whether the batch ended a window


def profile_memory(train: TrainBatch, batch: Any, device: torch.device, held: Iterable[Tensor]) -> StageMemory:
    """Train on ``batch`` for two windows, and return their memory.

    ``held`` are the tensors of models, optimizers and averages. It is best a generator, as a list would keep tensors
    alive that the steps replace.
    """
    backend: Any = torch.get_device_module(device)
    meter: Meter
    if hasattr(backend, "max_memory_allocated"):
        meter = _AllocatorMeter(device)
    else:
        meter = _TensorMeter(device, chain(held, tensors(batch).values()))
    with meter:
        first, second = (_profile_window(train, batch, device, meter) for _ in range(2))
    name = backend.get_device_name(device) if hasattr(backend, "get_device_name") else device.type
    return StageMemory(name, meter.counted, first, second)


def _profile_window(train: TrainBatch, batch: Any, device: torch.device, meter: Meter) -> dict[str, Reading]:
    """Return what the window's last batch held at the end of each stage, and each stage's peak over all batches."""
    readings: dict[str, Reading] = {}

    def read(stage: str, /) -> None:
        now, before = meter.read(), readings.get(stage)  # with several models or batches, a stage ends several times
        readings[stage] = Reading(now.allocated, now.peak if before is None else max(now.peak, before.peak))

    ended = False
    while not ended:
        meter.read()
        moved = map_movable(lambda leaf, _: leaf.to(device), batch)
        read("data")
        ended = train(moved, read)
        read("step")
        del moved
    readings.setdefault("forward", readings["loss"])  # a loss_fn may call parts of a model instead of the model
    return {stage: readings[stage] for stage in STAGES}


@contextmanager
def restored(models: Sequence[nn.Module], optimizers: Sequence[Optimizer], device: torch.device) -> Iterator[None]:
    """Restore weights, buffers, optimizers and random numbers after the block, from copies on the host."""
    weights = [weight for model in models for weight in chain(model.parameters(), model.buffers())]
    weights_before = on_host(weights)
    modules = [module for model in models for module in model.modules()]
    buffers_before = [(module, name, buffer) for module in modules for name, buffer in module._buffers.items()]  # noqa: SLF001
    states_before = []
    for optimizer in optimizers:
        state = optimizer.state_dict()
        states_before.append({**copy.deepcopy({**state, "state": {}}), "state": on_host(state["state"])})
    devices = [] if device.type in STREAMLESS else [device]
    try:
        with torch.random.fork_rng(devices, device_type=device.type):
            yield
    finally:
        for module, name, buffer in buffers_before:
            _put_back(module, name, buffer)
        with torch.no_grad():
            for weight, before in zip(weights, weights_before, strict=True):
                weight.copy_(before)
        for optimizer, state in zip(optimizers, states_before, strict=True):
            optimizer.load_state_dict(state)


def _put_back(module: nn.Module, name: str, buffer: Tensor | None) -> None:
    """Give a module the buffer that it had, unless it has made itself a larger table, and may count on having it."""
    now = buffer_now(module._buffers, name)  # noqa: SLF001
    is_new_table = now is not None and (buffer is None or now.shape != buffer.shape)
    if not (is_new_table and name in module._non_persistent_buffers_set):  # noqa: SLF001
        module._buffers[name] = buffer  # noqa: SLF001


def on_host(state: Any) -> Any:
    """Return a copy of a nested state whose tensors are on the CPU."""

    def copied(leaf: Any, _: Path) -> Any:
        return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf

    return copy.deepcopy(map_movable(copied, state))


class Meter(AbstractContextManager[Any], Protocol):
    """Counts bytes inside its ``with`` block."""

    counted: str

    def read(self) -> Reading:
        """Return what is allocated now, and the peak since the last reading."""


class _AllocatorMeter(AbstractContextManager[Any]):
    """Reads the counters of the device's allocator, which count when work is queued, so reading waits for nothing."""

    counted = "allocator"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._backend: Any = torch.get_device_module(device)

    def read(self) -> Reading:
        reading = Reading(
            self._backend.memory_allocated(self._device), self._backend.max_memory_allocated(self._device)
        )
        self._backend.reset_peak_memory_stats(self._device)
        return reading

    def __exit__(self, *_: object) -> None: ...


class _TensorMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages of ``held``, and each storage that an operator returns, until it is freed."""

    counted = "tensors"

    def __init__(self, device: torch.device, held: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._allocated = self._peak = 0
        for tensor in held:
            self._count(tensor)

    def read(self) -> Reading:
        reading = Reading(self._allocated, self._peak)
        self._peak = self._allocated
        return reading

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returned = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return returned

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001  (its address, which has no public name)
        if tensor.device.type == self._device.type and key not in self._living:
            self._living[key] = weakref.ref(storage, partial(self._discount, key, size))
            self._allocated += size
            self._peak = max(self._peak, self._allocated)

    def _discount(self, key: int, size: int, _: object) -> None:
        del self._living[key]
        self._allocated -= size


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"
