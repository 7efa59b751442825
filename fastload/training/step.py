"""``TrainStep``: the body of a mixed-precision training loop.

1. A call trains on one batch: forward and loss under autocast, then the backward pass of the scaled loss.
2. The last batch of an ``AccumulationWindow`` is followed by the update. Gradients are unscaled and clipped, and each
   optimizer steps through its ``GatedOptimizer``, which can skip the update on the device: by the scaler's flag, or by
   ``NonfiniteFlags``.
3. Before the next update the host reads the ``UpdateResult``. If the update was applied, it steps schedulers, ``EMA``
   and counter. By then the device has the next window's work in its queue, so it is not idle if the host waits.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fastload.structure.tree import map_movable, tensors
from fastload.training import checks
from fastload.training.accumulation import AccumulationWindow
from fastload.training.cuda_graphs import Graphs
from fastload.training.ema import EMA
from fastload.training.gated_optimizer import GatedOptimizer
from fastload.training.losses import Losses, LossTerms, check_gradient
from fastload.training.memory import StageCallback, StageMemory, on_host, profile_memory, restored
from fastload.training.nonfinite import (
    OVERFLOWS_IN_A_ROW,
    LossRecord,
    NonfiniteFlags,
    NonfiniteMonitor,
    describe,
    describe_standstill,
)
from fastload.training.precision import autocast, carry_autocast_to_replicas, grad_scaler, resolve_precision
from fastload.training.ranks import Ranks, leave_statistics_unread, scale_gradients, whole_tensor
from fastload.training.saved_state import check_state
from fastload.training.step_graphs import StepGraphs
from fastload.training.update_result import UpdateResult
from fastload.training.wrappers import (
    plain_optimizer,
    refuse_accumulation,
    scheduled_optimizer,
    step_scheduler,
    stepped_through,
)

__all__ = ["StepOutput", "TrainStep"]

Given = tuple[tuple[Any, ...], dict[str, Any]]  # a batch, as a call's arguments: by place, and by name
INPUTS_AND_TARGETS = 2


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """What a step returns. Its tensors are detached and on the device: to read one, the host waits for the device.

    >>> StepOutput(loss=torch.tensor(0.5), losses={}, stepped=True, grad_norm=None).loss.item()
    0.5

    ``loss`` is a scalar, not divided by ``accumulate``. If it came as a dict, ``losses`` holds the terms that were
    summed, and ``metrics`` the other scalars, numbers included. ``stepped`` says whether this batch ended an
    accumulation window. ``grad_norm`` is the scalar norm of the gradients before clipping, None inside a window and
    without ``max_norm``.
    ``skipped`` is a scalar, 1 if the window's update does not count for any optimizer, else 0; None inside a window,
    and if all updates count. Such an update is kept from the weights, except with ``on_nonfinite="raise"`` in bf16 or
    fp32 and an optimizer that is not fused. ``output`` is what the model returned, with ``keep_output=True``; else
    None.
    """

    loss: Tensor
    losses: dict[str, Tensor]
    stepped: bool
    grad_norm: Tensor | None
    skipped: Tensor | None = None
    metrics: dict[str, Tensor] = field(default_factory=dict)
    output: Any = None


class TrainStep:
    """Forward, loss, backward and update, in fp32, bf16 or fp16, without a wait for the device.

    >>> model = nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loader = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(3)]
    >>> step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), precision="bf16", accumulate=2)
    >>> for images, labels in step.epoch(loader):
    ...     out = step(images, labels)
    ...     print(out.loss.shape, out.stepped)
    torch.Size([]) False
    torch.Size([]) True
    torch.Size([]) True

    docs/train_step.md shows the same loop written by hand, and explains its order.

    Args:
        model: already on its device, which is that of its first parameter; or several models, in a list.
        optimizer: of the model's parameters, also as Accelerate, Lightning or Fabric wrap it; or several, in a list.
            Lightning's ``global_step`` counts the updates that ``training_step`` makes with what ``self.optimizers()``
            returns, without ``use_pl_optimizer=False``. In fp16 pass ``fused=True`` where an optimizer has it: the
            others of ``torch.optim`` copy weights and state during each update, and those of other packages wait for
            the device.
        loss_fn: ``step(inputs, targets)`` trains on ``loss_fn(model(inputs), targets)``; without it
            ``step(*batch)`` trains on ``model(*batch)``, and ``step(**batch)`` on ``model(**batch)``; with several
            models it trains on ``loss_fn(*models, *batch)``. The loss is a scalar tensor, or a dict.
        losses: the name, or names, of the terms to be summed if the loss is a dict. Without it, that is the entry
            ``"loss"`` (Hugging Face's models); if there is none, all entries that carry a gradient (torchvision's
            detection models). Where this is in doubt, it raises or warns.
        precision: ``"fp32"``, ``"bf16"``, ``"fp16"``, or ``"auto"``: bf16 where the accelerator computes it
            natively, fp16 on other accelerators, fp32 on the CPU. fp16 on the CPU warns and trains in fp32.
        accumulate: batches an update, at least 1; their gradients are averaged.
        max_norm: the 2-norm to which the gradients of each optimizer are clipped, above 0; ``math.inf`` only measures
            it.
        clip_value: the magnitude to which each gradient's elements are clipped, above 0, instead of ``max_norm``.
        scheduler: stepped after each update that was not skipped, not each epoch; or several, in a list. PyTorch's,
            Accelerate's around one, or timm's, whose ``step_update(updates)`` is called; if a timm scheduler counts
            epochs, call ``scheduler.step(epoch + 1)`` after each.
        ema: the decay of the weights' moving average, above 0 and below 1; evaluate it in ``step.ema.applied()``.
        on_nonfinite: when a loss or a gradient is inf or NaN, or a window has no items, ``"raise"``, ``"skip"`` the
            update with a warning, or ``"ignore"`` it. In fp16 the scaler skips updates whose gradients overflow.
        keep_output: hand back the model's output in ``out.output``, detached; with several models, what ``loss_fn``
            returned. It holds the output's memory as long as you hold ``out``.
        scaler: a ``torch.amp.GradScaler`` with other settings than the default; needs ``precision="fp16"``.
        graph: replay the step as CUDA graphs, so that the host hardly works: on CUDA, over batches at fixed addresses,
            such as those of ``PrefetchLoader(static="drop")``. docs/cuda_graphs.md has what a step must keep to.

    Raises:
        ValueError: an argument is out of its range, or does not belong to the others.
            From a step: the loss carries no gradient.
        TypeError: an argument is of the wrong type, or, from a step, the loss is not a scalar.
        FloatingPointError: a loss or gradient was not finite; raised by the step that ends the next window, or by
            ``flush``.

    After a step that raises, training can go on with the next batch. If forward or loss raised, the batch is left out
    of its window. If the backward pass raised, its gradients are incomplete: the window is dropped, and the next batch
    begins a new one. So is the window whose update raised, ``FloatingPointError`` included; if an optimizer itself
    raised, it may have changed some weights: go back to those saved before.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: Callable[..., Tensor | Mapping[str, Any]] | None = None,
        *,
        precision: str = "auto",
        accumulate: int = 1,
        max_norm: float | None = None,
        clip_value: float | None = None,
        scheduler: Any = None,
        ema: float | None = None,
        on_nonfinite: str = "raise",
        scaler: torch.amp.GradScaler | None = None,
        losses: str | Sequence[str] | None = None,
        keep_output: bool = False,
        graph: bool = False,
    ) -> None:
        self._models: list[nn.Module] = _listed(model)
        self._given_optimizers = _listed(optimizer)
        self._optimizers = [plain_optimizer(each) for each in self._given_optimizers]
        self._schedulers: list[Any] = _listed(scheduler)
        checks.check_models(self._models)
        checks.check_optimizers(self._optimizers, self._models)
        checks.check_loss_fn(loss_fn, self._models)
        checks.check_accumulate(accumulate)
        checks.check_clipping(max_norm, clip_value)
        checks.check_schedulers(self._schedulers, self._optimizers)
        checks.check_on_nonfinite(on_nonfinite)
        checks.check_scaler(scaler, precision)
        checks.check_losses(losses)
        checks.check_flag("keep_output", keep_output)
        checks.check_flag("graph", graph)
        self._device = device = next(self._models[0].parameters()).device
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.loss_fn = loss_fn
        self.precision = resolve_precision(precision, device)
        self.accumulate = accumulate
        self.max_norm = max_norm
        self.clip_value = clip_value
        self.on_nonfinite = on_nonfinite
        self.losses = losses
        self.keep_output = keep_output
        self.scaler = scaler or grad_scaler(self.precision, device)
        self._autocast = autocast(self.precision, device)
        for hook in carry_autocast_to_replicas(self._models, device):
            weakref.finalize(self, hook.remove)
        self._ranks = Ranks(self._models, device)
        for replica in self._ranks.replicated:
            leave_statistics_unread(replica)
        self._graphs = Graphs([*self._models, *([loss_fn] if isinstance(loss_fn, nn.Module) else [])], device)
        self._loss_terms = LossTerms(losses)
        self._window = AccumulationWindow(accumulate)
        self._monitor = NonfiniteMonitor()
        undo = self.scaler.is_enabled() or on_nonfinite == "skip"
        self._gated = [
            GatedOptimizer(each, undo=undo, through=stepped_through(given))
            for each, given in zip(self._optimizers, self._given_optimizers, strict=True)
        ]
        self._ema = None if ema is None else EMA(_as_one(model), ema, static=graph)
        self._result: UpdateResult | None = None  # of the last update, until the host has read it
        self._nonfinite_error: str | None = None  # the text, until it is raised
        self._batches = self._windows = self._updates = 0
        self._overflows = 0  # since the last update that was applied
        self._place: int | None = None  # of the next batch in its epoch
        self._left: int | None = None  # batches left in the epoch, the next one included
        self._resumed_at = 0
        self._on_stage: StageCallback | None = None
        self._step_graphs = self._made_graphs() if graph else None
        self._needs_agreement = accumulate > 1 or on_nonfinite != "ignore"  # of ranks, beside their gradients
        _resolve_before_state_dict(self)

    def __repr__(self) -> str:
        models, optimizers, schedulers = (
            " + ".join(type(each).__name__ for each in several)
            for several in (self._models, self._given_optimizers, self._schedulers)
        )
        settings = {"precision": self.precision, "accumulate": self.accumulate, "max_norm": self.max_norm}
        settings |= {"clip_value": self.clip_value, "scheduler": schedulers or None}
        settings |= {"ema": None if self._ema is None else self._ema.decay, "on_nonfinite": self.on_nonfinite}
        told = "".join(f", {name}={value}" for name, value in settings.items() if value is not None)
        return f"{type(self).__name__}({models}, {optimizers}{told})"

    def __call__(self, *batch: Any, items: Tensor | float | None = None, **named: Any) -> StepOutput:
        """Train on one batch: ``step(inputs, targets)``; without a ``loss_fn`` ``step(*batch)`` or ``step(**batch)``.

        ``items``, a number or a scalar tensor, weighs the batch by what it holds, such as its labels that are not
        padding: the update's gradient is then that of the mean over all items of the window, of all ranks. If that
        window has none, ``on_nonfinite`` says what happens.
        """
        checks.check_items(items)
        refuse_accumulation(self._given_optimizers)
        if self._ema is not None:
            self._ema.refuse_if_applied()
        if self._needs_agreement or items is not None:
            self._ranks.refuse_join()
        self._window.begin_batch(self._left, items)
        stepped, given = self._window.is_last, (batch, named)
        if self._step_graphs is None:
            if self._window.batches == 0:
                self._drop_gradients()  # another step's loss may have left some, as a generator's in the discriminator
            losses, output = self._backward(given, items, stepped=stepped)
        else:
            losses, output = self._replay_backward(self._step_graphs, given, items, stepped=stepped)
        try:
            self._count_batch(losses, items)
        except BaseException:
            self._begin_window()
            raise
        if self._on_stage is not None:
            self._on_stage("backward")
        grad_norm, skipped = self._update() if stepped else (None, None)
        return StepOutput(losses.total, losses.terms, stepped, grad_norm, skipped, losses.metrics, output)

    def epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the loader's batches; the last of them ends the last window, however short it is.

        ``len(loader)`` tells which window is short: its losses are divided by its real size, and its gradients are
        reduced over ranks like those of other windows. If the loader has no length, or a wrong one, ``flush`` ends
        the last window. After ``load_state_dict`` the first epoch is the rest of the one in which the state was saved,
        so let the loader resume too.
        """
        start, self._resumed_at = self._resumed_at, 0
        start = getattr(loader, "resumed_at", start)  # a PrefetchLoader's, right for another number of ranks too
        length = None
        with suppress(TypeError):
            length = len(loader)  # type: ignore[arg-type]
        try:
            for place, batch in enumerate(loader, start):
                self._place = place
                self._left = length - place if length is not None and place < length else None
                yield batch
            self.flush()
        finally:
            self._place = self._left = None

    def flush(self) -> None:
        """Update with the batches of an unfinished window, averaged over their number, and wait for its result.

        Call it after an epoch whose length is not a multiple of ``accumulate``; else these batches count towards the
        next epoch's first update. ``epoch`` calls it.
        """
        if self._window.batches > 0:
            if self._ranks.count > 1:
                self._ranks.refuse_join()
                self._ranks.average_gradients()
            self._update()
        self._resolve_update()
        self._report_nonfinite()

    @property
    def updates(self) -> int:
        """The number of updates applied, not counting skipped ones; waits for the last one."""
        self._resolve_update()
        return self._updates

    @property
    def ema(self) -> EMA | None:
        """The moving average of the weights; waits for the last update; None without ``ema=``."""
        self._resolve_update()
        return self._ema

    def grad(self, loss: Tensor, inputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the loss's gradients with respect to ``inputs``, differentiable, as a gradient penalty needs them.

        >>> model = nn.Linear(4, 2)
        >>> def with_penalty(output, target):
        ...     loss = nn.functional.cross_entropy(output, target)
        ...     squares = [gradient.square().sum() for gradient in step.grad(loss, list(model.parameters()))]
        ...     return {"class": loss, "penalty": 0.1 * sum(squares)}
        >>> step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), with_penalty)
        >>> sorted(step(torch.randn(8, 4), torch.randint(0, 2, (8,))).losses)
        ['class', 'penalty']

        In fp16 the loss is scaled for the backward pass, and the gradients are unscaled, on the device.
        """
        with torch.autocast(loss.device.type, enabled=False):
            gradients = torch.autograd.grad(self.scaler.scale(loss), inputs, create_graph=True)
            if not self.scaler.is_enabled():
                return gradients
            scale = self.scaler.scale(torch.ones((), device=loss.device))
            return tuple(gradient / scale for gradient in gradients)

    def profile_memory(self, batch: Any) -> StageMemory:
        """Run two steps on ``batch``, and return the memory held after each of their stages.

        >>> model = nn.Linear(4, 2)
        >>> step = TrainStep(model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss())
        >>> memory = step.profile_memory((torch.randn(8, 4), torch.randint(0, 2, (8,))))
        >>> list(memory.first)
        ['data', 'forward', 'loss', 'backward', 'step']

        ``batch`` is what ``step(*batch)`` or ``step(**batch)`` takes, on the device or on the host. The steps are real;
        afterwards weights, buffers, optimizers, schedulers, random numbers and this step are restored from a copy on
        the host. With ``accumulate`` a step is a window: ``allocated`` is that of its last batch, ``peak`` that of all.
        With several ranks all have to call this. Raises RuntimeError inside a window, and what a step raises.
        """
        if self._window.batches > 0:
            raise RuntimeError(
                f"memory is profiled over whole windows, and this one has begun: call step.flush() first; got "
                f"{self._window.batches} of {self._window.size} batches"
            )
        state = on_host({**self.state_dict(), "place": self._resumed_at})  # the epoch that is under way goes on
        graphs, self._step_graphs = self._step_graphs, None  # whose stages the host does not see
        try:
            with restored(self._models, self._optimizers, self._device):
                return profile_memory(self._train_in_stages, batch, self._device, self._held())
        finally:
            self._step_graphs = graphs
            self.load_state_dict(state)

    def _train_in_stages(self, batch: Any, on_stage: StageCallback) -> bool:
        """Train on a batch, calling ``on_stage`` at the end of each stage; return whether it ended a window."""
        hooks = [model.register_forward_hook(lambda *_: on_stage("forward")) for model in self._models]
        self._on_stage = on_stage
        try:
            return (self(**batch) if isinstance(batch, Mapping) else self(*batch)).stepped
        finally:
            self._on_stage = None
            for hook in hooks:
                hook.remove()

    def _held(self) -> Iterator[Tensor]:
        """Yield the tensors that are kept between two calls, gradients excepted."""
        for model in self._models:
            yield from chain(model.parameters(), model.buffers())
        for optimizer in self._optimizers:
            yield from tensors(optimizer.state_dict()["state"]).values()
        if self._ema is not None:
            yield from self._ema.state_dict().values()

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume training, besides the states of model and optimizer.

        >>> model = nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), ema=0.9)
        >>> saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step.state_dict()}

        Inside a window it also holds the window's gradients, which under ``DistributedDataParallel`` differ by rank.
        ``torch.load(weights_only=True)`` reads it. Raises RuntimeError inside a window under FSDP2, whose gradients
        cannot be read.
        """
        self._resolve_update()
        if self._window.batches > 0 and self._ranks.sharded:
            raise RuntimeError(
                f"under FSDP2 the state can be saved at a window's end only; got {self._window.batches} of "
                f"{self._window.size} batches"
            )
        gradients = [_cloned(parameter.grad) for parameter in self._parameters()] if self._window.batches else []
        return {
            "batches": self._batches,
            "windows": self._windows,
            "updates": self._updates,
            "place": self._resumed_at if self._place is None else self._place + 1,
            "complaint": self._nonfinite_error,
            "scaler": self.scaler.state_dict(),
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "ema": None if self._ema is None else self._ema.state_dict(),
            "window": self._window.state_dict(),
            "watch": self._monitor.state_dict(),
            "gradients": gradients,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``; load the states of model and optimizer first.

        Raises TypeError or ValueError, and changes nothing, if an entry is missing or has a value that no step saves,
        or if only one of the two, the state or this step, has a scaler, an EMA or schedulers.
        """
        parameters = self._parameters()
        check_state(state, self.scaler, self._ema, len(self._schedulers), parameters)
        self._result = None  # of an update that the loaded states replace
        self._batches, self._windows, self._updates = state["batches"], state["windows"], state["updates"]
        self._resumed_at, self._nonfinite_error = state["place"], state["complaint"]
        self._overflows = 0
        self.scaler.load_state_dict(state["scaler"])
        self.scaler.scale(torch.zeros((), device=self._device))  # it unscales only after it has scaled something
        for scheduler, saved in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        if self._ema is not None:
            self._ema.load_state_dict(state["ema"])
        if self._step_graphs is not None:
            self._step_graphs.forget()
        self._window.load_state_dict(state["window"], self._device)
        self._monitor.load_state_dict(state["watch"], self._device)
        for parameter, gradient in zip(parameters, state["gradients"] or [None] * len(parameters), strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)

    def _backward(self, given: Given, items: Tensor | float | None, *, stepped: bool) -> tuple[Losses, object]:
        """Forward and backward of a batch; return its losses, and its output if it is kept."""
        with self._ranks.gradient_sync(enabled=stepped):
            with self._autocast:
                losses, output = self._forward(*given)
            check_gradient(losses.total)
            if self._on_stage is not None:
                self._on_stage("loss")
            try:
                torch.autograd.backward(self.scaler.scale(self._window.weighted(losses.total, items)))
                return self._lasting(losses, output, stepped=stepped)
            except BaseException:  # its gradients are incomplete
                self._begin_window()
                raise

    def _replay_backward(
        self, graphs: StepGraphs, given: Given, items: Tensor | float | None, *, stepped: bool
    ) -> tuple[Losses, object]:
        """Do the same by a graph, whose results the next replay writes over."""
        if items is not None:
            raise ValueError("graph=True takes no items: its graphs hold how much a batch counts")
        decided = stepped, self._window.size
        try:
            losses, output = graphs.backward(
                given,
                decided,
                first=self._window.batches == 0,
                work=lambda: self._backward(given, items, stepped=stepped),
            )
        except BaseException:
            self._begin_window()
            raise
        return _each(losses, output, Tensor.clone)

    def _forward(self, batch: tuple[Any, ...], named: dict[str, Any]) -> tuple[Losses, object]:
        """Return the losses, and with ``keep_output`` the model's output, else None."""
        if self.loss_fn is None or len(self._models) > 1:
            whole = self._models[0] if self.loss_fn is None else partial(self.loss_fn, *self._models)
            returned = whole(*batch, **named)
            return self._loss_terms(returned), returned if self.keep_output else None
        if len(batch) != INPUTS_AND_TARGETS or named:
            got = " and ".join([str(len(batch)), *named])
            raise TypeError(
                f"with a loss_fn a step takes two arguments, inputs and targets; got {got}. Unpack a pair, "
                "step(*batch). For other batches leave loss_fn out, and let the model, or a module around it, return "
                "the loss"
            )
        inputs, targets = batch
        output = self._models[0](inputs)
        return self._loss_terms(self.loss_fn(output, targets)), output if self.keep_output else None

    def _lasting(self, losses: Losses, output: object, *, stepped: bool) -> tuple[Losses, object]:
        """Return losses and output without their graph, and gradients, too, where no replay writes over them."""
        replayed = self._graphs.replayed and self._step_graphs is None
        if replayed and not stepped:
            self._graphs.copy_gradients(self._parameters())
        return _each(losses, output, lambda value: value.detach().clone() if replayed else value.detach())

    def _count_batch(self, losses: Losses, items: Tensor | float | None) -> None:
        self._window.end_batch(items)
        self._batches += 1
        if self.on_nonfinite != "ignore":
            self._monitor.add(LossRecord(losses.total, losses.terms, self._batches, self._place))

    def _update(self) -> tuple[Tensor | None, Tensor | None]:
        """End the window; return the norm of its gradients, and whether the update is not counted."""
        try:
            # The host waits for the last update while the device has this window's work in its queue: it is not idle.
            self._resolve_update()
            self._report_nonfinite()
            grad_norm, self._result = self._step_optimizers()
            self._windows += 1
        finally:  # an update that fails, such as out of memory, ends its window too
            self._begin_window()
        skipped = self._result.skipped
        if self._result.known:
            self._resolve_update()
        elif self._ema is not None:
            self._average("buffers", self._ema.hold_buffers)
            self._ema.use_held()
        return grad_norm, skipped if self._step_graphs is None else _cloned(skipped)

    def _step_optimizers(self) -> tuple[Tensor | None, UpdateResult]:
        """Step all optimizers; return the norm of their gradients, and the update's result."""
        try:
            loss_flag = None if self.on_nonfinite == "ignore" else self._monitor.flag()
            if self._step_graphs is None:
                grad_norm, nonfinite, skipped = self._queue_update(loss_flag)
            else:
                decided = self._window.batches, self._window.size
                grad_norm, nonfinite, skipped = self._step_graphs.update(decided, loss_flag, self._queue_update)
                grad_norm = _cloned(grad_norm)
            return grad_norm, UpdateResult(skipped, nonfinite, self._monitor.records)
        except BaseException:
            for gated in self._gated:
                gated.forget_failure()
            if self.scaler.is_enabled():
                self.scaler.update(self.scaler.get_scale())  # forgets whose gradients it has unscaled
            raise

    def _queue_update(
        self, loss_flag: Tensor | None
    ) -> tuple[Tensor | None, NonfiniteFlags | None, list[Tensor | None]]:
        """Queue an update that the device skips if its window is unfit; return also each optimizer's flag of it."""
        grad_norm, nonfinite = self._finish_gradients(loss_flag)
        for gated in self._gated:
            gated.update(self.scaler, None if nonfinite is None else nonfinite.veto)
        self.scaler.update()
        return grad_norm, nonfinite, [gated.skipped for gated in self._gated]

    def _finish_gradients(self, loss_flag: Tensor | None) -> tuple[Tensor | None, NonfiniteFlags | None]:
        """Average, unscale, check and clip the window's gradients; return their norm, and what makes them unfit."""
        items = None if self._window.items is None else self._ranks.sum(self._window.items)
        if (factor := self._window.gradient_factor(items, self._ranks.count)) is not None:
            scale_gradients(self._gradients(), factor)
        if self.max_norm is not None or self.clip_value is not None:
            for gated in self._gated:
                gated.unscale(self.scaler)
        grad_norm = self._clip_norm()
        nonfinite = None if loss_flag is None else self._nonfinite_flags(loss_flag, grad_norm, items)
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(self._parameters(), self.clip_value)
        return grad_norm, nonfinite

    def _nonfinite_flags(
        self, loss_flag: Tensor, grad_norm: Tensor | None, items: Tensor | float | None
    ) -> NonfiniteFlags:
        has_none = None
        if items is not None:
            has_none = ~(items > 0) if isinstance(items, Tensor) else torch.full_like(loss_flag, not items > 0)
            has_none = has_none.to(loss_flag, non_blocking=True)
        # A scaler has a flag of its own. Elsewhere a norm that is at hand tells of all gradients.
        own = self._gradients() if grad_norm is None else [grad_norm]
        checked = [] if self.scaler.is_enabled() else own
        return NonfiniteFlags(loss_flag, checked, has_none, self._ranks)

    def _begin_window(self) -> None:
        """Drop what there is of the window."""
        if self._step_graphs is None:  # with graphs the next window writes over them
            self._drop_gradients()
        self._window.reset()
        self._graphs.drop_gradients()
        self._monitor.reset()

    def _drop_gradients(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _clip_norm(self) -> Tensor | None:
        """Clip each optimizer's gradients by their own norm: an inf in one's would make the other's NaN."""
        if self.max_norm is None:
            return None
        norms = [nn.utils.clip_grad_norm_(_parameters(each), self.max_norm) for each in self._optimizers]
        norms = [whole_tensor(norm) for norm in norms]
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))

    def _resolve_update(self) -> None:
        """Read the last update's result. If the update was applied, step EMA, counter and schedulers."""
        result = self._result
        if result is None:
            return
        if self._ema is not None:
            self._ema.refuse_if_applied()
        skipped, causes = result.read()
        self._result = None  # whatever raises before is asked again
        for gated, is_skipped in zip(self._gated, skipped, strict=True):
            gated.resolve(skipped=is_skipped)
        if not all(skipped):
            self._updates, self._overflows = self._updates + 1, 0
            if self._ema is not None:
                self._average("average", self._ema.update)
        if causes:
            self._nonfinite_error = describe(
                causes, result.losses, self._windows, skipped=all(gated.obeys_veto for gated in self._gated)
            )
        elif all(skipped):
            self._overflows += 1
            if self._overflows % OVERFLOWS_IN_A_ROW == 0 and self.on_nonfinite != "ignore":
                self._nonfinite_error = describe_standstill(self._windows)
        for gated, is_skipped in zip(self._gated, skipped, strict=True):
            for scheduler in self._schedulers:
                if scheduled_optimizer(scheduler) is gated.optimizer and not is_skipped:
                    step_scheduler(scheduler, self._updates)

    def _average(self, piece: str, work: Callable[[], object]) -> None:
        if self._step_graphs is None:
            work()
        else:
            self._step_graphs.average(piece, work)

    def _made_graphs(self) -> StepGraphs:
        checks.check_graph(self._device, self._optimizers, self._given_optimizers, self._ranks, self._graphs)
        return StepGraphs(self._models, self._optimizers, self._device)

    def _report_nonfinite(self) -> None:
        error, self._nonfinite_error = self._nonfinite_error, None
        if error is not None and self.on_nonfinite == "raise":
            raise FloatingPointError(error)
        if error is not None:
            warnings.warn(error, RuntimeWarning, stacklevel=4)

    def _parameters(self) -> list[Tensor]:
        return [parameter for optimizer in self._optimizers for parameter in _parameters(optimizer)]

    def _gradients(self) -> list[Tensor]:
        """Each once, though several optimizers may share a parameter."""
        parameters = {id(each): each for each in self._parameters()}.values()
        return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _each(losses: Losses, output: object, change: Callable[[Any], Any]) -> tuple[Losses, object]:
    """Return losses and output with each of their tensors changed."""

    def changed(value: Any) -> Any:
        return change(value) if hasattr(value, "detach") else value

    terms, metrics = ({name: changed(each) for name, each in of.items()} for of in (losses.terms, losses.metrics))
    kept = None if output is None else map_movable(lambda value, _: changed(value), output)
    return Losses(changed(losses.total), terms, metrics), kept


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple, nn.ModuleList)) else [given]


def _as_one(model: nn.Module | Sequence[nn.Module]) -> nn.Module:
    return model if isinstance(model, nn.Module) or not isinstance(model, Sequence) else nn.ModuleList(model)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _cloned(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _resolve_before_state_dict(step: TrainStep) -> None:
    """Make an optimizer's ``state_dict`` resolve the last update first, while the step exists."""
    reference = weakref.ref(step)

    def resolve(_: Optimizer) -> None:
        if (alive := reference()) is not None:
            alive._resolve_update()  # noqa: SLF001

    for optimizer in step._optimizers:  # noqa: SLF001
        weakref.finalize(step, optimizer.register_state_dict_pre_hook(resolve).remove)
