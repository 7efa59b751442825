"""``StepGraphs``: a training step's work on the device as CUDA graphs, captured once and replayed for later batches.

A step is three pieces of work: forward and backward of a batch, the update, and the moving average. Each is captured by
itself, so that what the host decides comes between them as it does without graphs: whether an update was skipped, the
learning rate, the end of a window. Three things make a replay do what the call would do:

1. A batch's work is captured for each memory that batches lie in. Batches at fixed addresses lie in a few.
2. Gradients lie at fixed addresses, so that all batches share one update.
3. Learning rates are tensors, which schedulers write to.

A piece runs without a graph some times first: cuDNN searches, optimizers make their state, compilers compile.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from fastload.streams import SideStream
from fastload.structure.tree import is_movable, tree_flatten
from fastload.training.tensors import buffer_now

__all__ = ["StepGraphs", "buffers_of", "capturable", "refuse_assigned"]

Result = TypeVar("Result")

WARM_UP = 3
WARM_UP_OF_DDP = 11  # DistributedDataParallel times its first ten iterations, by events that a capture may not read
MOST_GRAPHS = 32
OTHERWISE = "Leave out graph=True, or change the step"


@dataclass(frozen=True, slots=True, eq=False)
class _Captured(Generic[Result]):
    graph: torch.cuda.CUDAGraph
    result: Result


class StepGraphs:
    """The graphs of a ``TrainStep``, by what the host has decided when each was captured."""

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], device: torch.device) -> None:
        self._modules = [module for model in models for module in model.modules()]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._parameters = [parameter for group in groups for parameter in group["params"]]
        is_ddp = any(isinstance(module, DistributedDataParallel) for module in self._modules)  # also a compiled one
        self._warm_up = WARM_UP_OF_DDP if is_ddp else WARM_UP
        self._rates = [_FixedRate(group, device) for group in groups]
        self._gradients: dict[Tensor, Tensor] = {}
        self._loss_flag = torch.zeros((), device=device)
        self._device = self._loss_flag.device  # with its index
        self._side = SideStream(self._device)
        self._runs: dict[Hashable, int] = {}  # of each kind of work, without a graph
        self._graphs: dict[Hashable, _Captured[Any]] = {}
        # One for all, so a graph's results, and nothing else that it allocates, last until the next replay of any.
        self._pool = torch.cuda.graph_pool_handle()
        for optimizer in optimizers:
            vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True  # it runs so on purpose, a few times
            handle = optimizer.register_load_state_dict_post_hook(_forgetting(weakref.ref(self)))
            weakref.finalize(self, handle.remove)

    def backward(self, batch: Any, decided: Hashable, *, first: bool, work: Callable[[], Result]) -> Result:
        """Do the work of a batch, whose gradients begin a window if it is the ``first``, else are added to it."""
        leaves = tree_flatten(batch).leaves.items()
        shapes = tuple((path, _shape(leaf)) for path, leaf in leaves)
        places = tuple(leaf.data_ptr() for _, leaf in leaves if isinstance(leaf, Tensor))
        modes = tuple(module.training for module in self._modules)
        weights = tuple((each.data_ptr(), each.requires_grad) for each in self._parameters)

        def settled() -> Result:
            if first:
                for parameter in self._parameters:
                    parameter.grad = None
            else:
                self._attach()
            result = work()
            self._settle()
            return result

        return self._run(("backward", decided, first, shapes, modes, weights), places, settled)

    def update(self, decided: Hashable, loss_flag: Tensor | None, work: Callable[[Tensor | None], Result]) -> Result:
        """Do the work of an update, which gets the flag of the window's losses."""
        for rate in self._rates:
            rate.refresh()
        settings = tuple(rate.settings() for rate in self._rates)
        if loss_flag is not None:
            loss_flag = self._loss_flag.copy_(loss_flag)

        def attached() -> Result:
            self._attach()
            return work(loss_flag)

        return self._run(("update", decided, settings), None, attached)

    def average(self, piece: str, work: Callable[[], Result]) -> Result:
        """Do a piece of the moving average's work."""
        return self._run(piece, None, work)

    def forget(self) -> None:
        """Drop all graphs; the next steps warm up and capture anew."""
        self._graphs.clear()
        self._runs.clear()
        self._gradients.clear()
        self._pool = torch.cuda.graph_pool_handle()

    def _run(self, kind: Hashable, place: Hashable, work: Callable[[], Result]) -> Result:
        if (runs := self._runs.get(kind, 0)) < self._warm_up:
            if not runs:
                self._refuse_more(self._runs)
            result = work()
            self._runs[kind] = runs + 1
            return result
        captured: _Captured[Result] | None = self._graphs.get((kind, place))
        if captured is None:
            self._refuse_more(self._graphs)
            captured = self._graphs[kind, place] = self._capture(work)
        captured.graph.replay()
        return captured.result

    def _refuse_more(self, known: Collection[Hashable]) -> None:
        if len(known) >= MOST_GRAPHS:
            raise RuntimeError(
                f"graph=True has made {MOST_GRAPHS} graphs, and needs another: batches come at new addresses or in new "
                "shapes, or settings of the optimizer other than the learning rate change with each update. Pass "
                "static=True to PrefetchLoader, pad batches, or pass cycle_momentum=False to the scheduler"
            )

    def _capture(self, work: Callable[[], Result]) -> _Captured[Result]:
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[self._device.index]
        random = generator.clone_state()
        before = buffers_of(self._modules)
        try:
            with self._side.capture(graph, self._pool):
                result = work()
            refuse_assigned(before)
            # A capture sets the random numbers' place to 0 on its own stream, and a replay to what it is on this one.
            torch.cuda.synchronize(self._device)
            return _Captured(graph, result)
        except BaseException as error:
            # A capture that PyTorch cannot end leaves its generator and its allocator as if it went on.
            generator.graphsafe_set_state(random)
            with suppress(RuntimeError):  # it has ended
                torch._C._cuda_endAllocateToPool(self._device.index, self._pool)  # noqa: SLF001
            self.forget()
            if not isinstance(error, Exception):
                raise
            reason = error.__context__ or error  # what ended the capture, before its end failed too
            raise RuntimeError(
                f"graph=True: this step cannot be captured as a CUDA graph: {reason}. A step that reads values on the "
                f"host, or whose shapes depend on values, cannot be. {OTHERWISE}"
            ) from error

    def _attach(self) -> None:
        """Give parameters their gradients, which somebody may have set to None since a replay made them."""
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient

    def _settle(self) -> None:
        """Move the gradients to their fixed addresses."""
        found = [each for each in self._parameters if each.grad is not None]
        if not self._gradients:
            self._gradients = {each: _dense(each.grad).clone() for each in found}
        if self._gradients.keys() != set(found):
            raise RuntimeError(
                f"graph=True: {len(found)} parameters have gradients of this batch, and {len(self._gradients)}, or "
                f"others, had them before. {OTHERWISE}, so that it is the same parameters each time"
            )
        moved = [each for each in found if each.grad is not self._gradients[each]]
        if moved:
            torch._foreach_copy_([self._gradients[each] for each in moved], [each.grad for each in moved])
        for each in moved:
            each.grad = self._gradients[each]


def buffers_of(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, str, Tensor | None]]:
    """The buffers that modules have now, each with its module and its name there."""
    return [(module, name, buffer) for module in modules for name, buffer in module._buffers.items()]  # noqa: SLF001


def refuse_assigned(before: Iterable[tuple[nn.Module, str, Tensor | None]]) -> None:
    """Put back buffers in whose place modules have put others meanwhile: a replay would read the old ones for ever.

    >>> norm = nn.BatchNorm1d(2)
    >>> before = buffers_of([norm])
    >>> norm.running_var = norm.running_var + 1
    >>> refuse_assigned(before)
    Traceback (most recent call last):
    RuntimeError: BatchNorm1d assigns its buffer 'running_var'; in a graph it has to write to it: running_var.copy_(...)
    """
    assigned = [each for each in before if buffer_now(each[0]._buffers, each[1]) is not each[2]]  # noqa: SLF001
    for module, name, buffer in assigned:
        module._buffers[name] = buffer  # noqa: SLF001
    for module, name, _ in assigned:
        raise RuntimeError(
            f"{type(module).__name__} assigns its buffer {name!r}; in a graph it has to write to it: {name}.copy_(...)"
        )


class _FixedRate:
    """The learning rate of a group of parameters as a tensor at a fixed address, whatever writes to the group."""

    def __init__(self, group: dict[str, Any], device: torch.device) -> None:
        self._group = group
        self._rate = torch.tensor(float(group["lr"]), device=device)
        self.refresh()

    def refresh(self) -> None:
        """Take over a rate that somebody has put into the group instead of writing to the tensor."""
        if self._group["lr"] is not self._rate:
            self._rate.fill_(self._group["lr"])
            self._group["lr"] = self._rate

    def settings(self) -> tuple[Hashable, ...]:
        """What else the group has, which is fixed in a graph."""
        others = ((name, value) for name, value in self._group.items() if name not in ("params", "lr"))
        return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in others)


def _forgetting(graphs: Callable[[], StepGraphs | None]) -> Callable[[Optimizer], None]:
    """Return a hook that drops the graphs of an optimizer whose state is replaced."""

    def forget(_: Optimizer) -> None:
        if (alive := graphs()) is not None:
            alive.forget()

    return forget


def capturable(optimizer: Optimizer) -> bool:
    """Whether an optimizer's update can be captured; one that has not begun is told to make it so."""
    for group in optimizer.param_groups:
        if "capturable" not in group and not group.get("fused"):
            return False
        if not group.get("capturable", True):
            if optimizer.state:  # its counters are on the host
                return False
            group["capturable"] = True
    return True


def _shape(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return type(leaf), leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    if is_movable(leaf) or not isinstance(leaf, Hashable):
        raise TypeError(f"graph=True takes batches of tensors and constants; got a {type(leaf).__name__}")
    return leaf


def _dense(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    if gradient.is_sparse:
        raise RuntimeError(f"graph=True takes dense gradients; got a sparse one. {OTHERWISE}")
    return gradient.detach()
