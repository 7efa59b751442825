"""``StageMemory``: what a training step holds in memory after each of its stages, and the most it held during each.

The step itself is run, twice, with marks between its stages; then all that it changed is given back.
"""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastload.streams import STREAMLESS
from fastload.structure.tree import Path, map_movable, tensors

if TYPE_CHECKING:
    from fastload.training.step import TrainStep

__all__ = ["STAGES", "Reading", "StageMemory", "profile_memory"]

STAGES = ("data", "forward", "loss", "backward", "step")


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

    ``counted`` says by whom: ``"allocator"``, that of the device, which counts all that this process has on it; or,
    where it does not count, as on the CPU, ``"tensors"``: those that the step, its model and its batch hold, without
    what operators need inside.
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


def profile_memory(step: TrainStep, batch: Any) -> StageMemory:
    """Run two training steps on ``batch``, and return their memory; ``TrainStep.profile_memory`` tells more."""
    if step._window.batches > 0:
        raise RuntimeError("memory is profiled over whole windows, and this one has begun: call step.flush() first")
    device = step._device
    backend: Any = torch.get_device_module(device)
    with _given_back(step):
        meter: Meter = _Allocator(device) if hasattr(backend, "max_memory_allocated") else _Tensors(step, batch)
        with meter:
            first, second = (_measure(step, batch, meter) for _ in range(2))
    name = backend.get_device_name(device) if hasattr(backend, "get_device_name") else device.type
    return StageMemory(name, meter.counted, first, second)


def _measure(step: TrainStep, batch: Any, meter: Meter) -> dict[str, Reading]:
    """Train on the batch until a window ends; return what its last batch held, with the peaks of them all."""
    readings: dict[str, Reading] = {}

    def mark(stage: str) -> None:
        now, before = meter.read(), readings.get(stage)  # with several models or batches, a stage ends several times
        readings[stage] = Reading(now.allocated, now.peak if before is None else max(now.peak, before.peak))

    stepped = False
    while not stepped:
        meter.read()
        moved = map_movable(lambda leaf, _: leaf.to(step._device), batch)
        mark("data")
        with _marking(step, mark):
            stepped = step(*moved).stepped
        mark("step")
        del moved
    readings.setdefault("forward", readings["loss"])  # where a loss_fn calls parts of a model, and not the model
    return {stage: readings[stage] for stage in STAGES}


@contextmanager
def _marking(step: TrainStep, mark: Callable[[str], None]) -> Iterator[None]:
    """Call ``mark`` with the name of each stage that ends inside the step."""
    forward, update = step._forward, step._update

    def marked_forward(batch: tuple[Any, ...]) -> object:
        returned = forward(batch)
        mark("loss")
        return returned

    def marked_update() -> tuple[Tensor | None, Tensor | None]:
        mark("backward")
        return update()

    hooks = [model.register_forward_hook(lambda *_: mark("forward")) for model in step._models]
    vars(step).update(_forward=marked_forward, _update=marked_update)
    try:
        yield
    finally:
        del step._forward, step._update
        for hook in hooks:
            hook.remove()


@contextmanager
def _given_back(step: TrainStep) -> Iterator[None]:
    """Give back after the block what training in it changes, kept on the host meanwhile.

    It is given back as to a run that was stopped and goes on.
    """
    models, device = step._models, step._device
    weights = [weight for model in models for weight in chain(model.parameters(), model.buffers())]
    kept = _on_host(weights)
    optimizers = []
    for optimizer in step._optimizers:
        state = optimizer.state_dict()
        optimizers.append((optimizer, {**copy.deepcopy({**state, "state": {}}), "state": _on_host(state["state"])}))
    training = {**_on_host(step.state_dict()), "place": step._resumed_at}
    devices = [] if device.type in STREAMLESS else [device]
    try:
        with torch.random.fork_rng(devices, device_type=device.type):
            yield
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)
        for optimizer, state in optimizers:
            optimizer.load_state_dict(state)
        step.load_state_dict(training)


def _on_host(state: Any) -> Any:
    def copied(leaf: Any, _: Path) -> Any:
        return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf

    return copy.deepcopy(map_movable(copied, state))


class Meter(AbstractContextManager[Any], Protocol):
    """Counts bytes inside its ``with`` block."""

    counted: str

    def read(self) -> Reading:
        """Return what is allocated now, and the peak since the last reading."""


class _Allocator(AbstractContextManager[Any]):
    """The counters of a device's own allocator. They move when work is queued: there is nothing to wait for."""

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


class _Tensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts each storage from the operator that returns it until it dies, and those that the step holds before."""

    counted = "tensors"

    def __init__(self, step: TrainStep, batch: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = step._device
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._allocated = self._peak = 0
        states = [optimizer.state_dict()["state"] for optimizer in step._optimizers]
        averages = step.ema.state_dict() if step.ema is not None else {}
        weights = [chain(model.parameters(), model.buffers()) for model in step._models]
        for tensor in chain(*weights, tensors([states, averages, batch]).values()):
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
        key, size = storage._cdata, storage.nbytes()
        if tensor.device.type == self._device.type and key not in self._living:
            self._living[key] = weakref.ref(storage, partial(self._discount, key, size))
            self._allocated += size
            self._peak = max(self._peak, self._allocated)

    def _discount(self, key: int, size: int, _: object) -> None:
        del self._living[key]
        self._allocated -= size


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"
