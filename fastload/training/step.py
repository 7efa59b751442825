"""``TrainStep``: the body of a mixed-precision training loop, each line where it has to be.

A call does one batch: forward and loss under autocast, then the scaled backward pass. The last batch of an
``AccumulationWindow`` is followed by the update: gradients are unscaled and clipped, and each optimizer is stepped
through its ``GatedOptimizer``, which applies the scaler's flag and that of the ``NonfiniteMonitor`` on the device.
Scheduler, ``EMA`` and counters move once the host has read the ``UpdateResult``: before the next update, without
leaving the device idle.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fastload.training import checks
from fastload.training.accumulation import AccumulationWindow, Ranks, scale
from fastload.training.cuda_graphs import Graphs
from fastload.training.ema import EMA
from fastload.training.gated_optimizer import GatedOptimizer
from fastload.training.losses import total
from fastload.training.memory import StageMemory, profile_memory
from fastload.training.nonfinite import LossRecord, NonfiniteMonitor, describe
from fastload.training.precision import autocast, grad_scaler, resolve_precision
from fastload.training.replicas import hand_on_autocast
from fastload.training.update_result import UpdateResult

__all__ = ["StepOutput", "TrainStep"]


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """What a step hands back; its tensors are detached and on the device, and reading one waits for it.

    >>> StepOutput(loss=torch.tensor(0.5), losses={}, stepped=True, grad_norm=None).loss.item()
    0.5

    ``loss`` is a scalar, not divided by ``accumulate``; ``losses`` holds the terms it was summed from, if it
    came as a dict. ``stepped`` says whether this batch closed an accumulation window. ``grad_norm`` is the scalar
    norm of the gradients before clipping, or None inside a window and without ``max_norm``. ``skipped`` is a scalar
    of 1 if the window's update was skipped, by all optimizers, else 0; None inside a window, and where nothing is.
    """

    loss: Tensor
    losses: dict[str, Tensor]
    stepped: bool
    grad_norm: Tensor | None
    skipped: Tensor | None = None


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

    docs/train_step.md shows the same loop written by hand, and says why it is ordered so.

    Args:
        model: on its device already; the step runs where the model's first parameter is. Or several, in a list.
        optimizer: of the model's parameters, or several, in a list. In fp16 make them with ``fused=True`` if they
            can be: the others of ``torch.optim`` take the memory of their state once more for the time of the
            update, and those of other packages wait for the device.
        loss_fn: ``step(inputs, targets)`` trains on ``loss_fn(model(inputs), targets)``; without it
            ``step(*batch)`` trains on ``model(*batch)``; with several models it trains on
            ``loss_fn(*models, *batch)``. The loss is a scalar tensor, or a dict of them to be
            summed, as torchvision's detection models return.
        precision: ``"fp32"``, ``"bf16"``, ``"fp16"``, or ``"auto"``: bf16 where the accelerator computes it
            natively, fp16 on other accelerators, fp32 on the CPU. fp16 on the CPU warns and trains in fp32.
        accumulate: batches an update, at least 1; their gradients are averaged.
        max_norm: the 2-norm to which the gradients of an optimizer's parameters are clipped, above 0; ``math.inf``
            only measures it.
        clip_value: the magnitude to which each gradient's elements are clipped, above 0, instead of ``max_norm``.
        scheduler: stepped after each update that was not skipped, not each epoch; or several, in a list.
        ema: the decay of the weights' moving average, above 0 and below 1; ``step.ema.applied()`` evaluates with it.
        on_nonfinite: when a loss is inf or NaN, ``"raise"``, ``"skip"`` the update with a warning, or ``"ignore"`` it.
        scaler: in place of ``torch.amp.GradScaler`` with its defaults; needs ``precision="fp16"``.

    Raises:
        ValueError: an argument is out of its range, or does not belong to the others.
        TypeError: an argument is of the wrong type, or, from a step, the loss is no scalar.
        FloatingPointError: from the step that ends the next window, or from ``flush``: a loss was not finite.

    A batch whose forward or loss raises is left out of its window; training can go on with the next.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: Callable[..., Tensor | Mapping[str, Tensor]] | None = None,
        *,
        precision: str = "auto",
        accumulate: int = 1,
        max_norm: float | None = None,
        clip_value: float | None = None,
        scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
        ema: float | None = None,
        on_nonfinite: str = "raise",
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self._models: list[nn.Module] = _listed(model)
        self._optimizers: list[Optimizer] = _listed(optimizer)
        self._schedulers: list[LRScheduler] = _listed(scheduler)
        checks.check_optimizers(self._optimizers, self._models)
        checks.check_loss_fn(loss_fn, self._models)
        checks.check_accumulate(accumulate)
        checks.check_clipping(max_norm, clip_value)
        checks.check_schedulers(self._schedulers, self._optimizers)
        checks.check_on_nonfinite(on_nonfinite)
        checks.check_scaler(scaler, precision)
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
        self.scaler = scaler or grad_scaler(self.precision, device)
        self._autocast = autocast(self.precision, device)
        hand_on_autocast(self._models, device)
        self._ranks = Ranks(self._models, device)
        self._graphs = Graphs([*self._models, *([loss_fn] if isinstance(loss_fn, nn.Module) else [])], device)
        self._window = AccumulationWindow(accumulate)
        self._watch = NonfiniteMonitor()
        undo = self.scaler.is_enabled() or on_nonfinite == "skip"
        self._gates = [GatedOptimizer(each, undo=undo) for each in self._optimizers]
        self._ema = None if ema is None else EMA(model if isinstance(model, nn.Module) else nn.ModuleList(model), ema)
        self._outcome: UpdateResult | None = None  # of the last update, while the host does not know it
        self._complaint: str | None = None  # of the last update, until it is raised
        self._batches = self._windows = self._updates = 0
        self._place: int | None = None  # of the batch to come in its epoch
        self._left: int | None = None  # batches in the epoch from this one on
        self._resumed_at = 0
        _settle_before_states_are_taken(self)

    def __call__(self, *batch: Any, items: Tensor | int | None = None) -> StepOutput:
        """Train on one batch: ``step(inputs, targets)``, or ``step(*batch)`` without a ``loss_fn``.

        With ``items``, a number or a scalar tensor, such as that of labels that are not padding, batches of a window
        count as their items do, on all ranks together.
        """
        if self._ema is not None:
            self._ema.refuse_if_applied()
        self._window.admit(self._left)
        stepped = self._window.is_last
        with self._ranks.reducing(now=stepped):
            with self._autocast:
                loss, losses = total(self._forward(batch))
            torch.autograd.backward(self.scaler.scale(self._window.share(loss, items)))
        self._window.add(items)
        loss, terms = loss.detach(), {name: term.detach() for name, term in losses.items()}
        if self._graphs.replayed:
            loss, terms = loss.clone(), {name: term.clone() for name, term in terms.items()}
            if not stepped:
                self._graphs.keep(self._parameters())
        self._batches += 1
        if self.on_nonfinite != "ignore":
            self._watch.see(LossRecord(loss, terms, self._batches, self._place))
        if not stepped:
            return StepOutput(loss, terms, stepped, None)
        grad_norm, skipped = self._update()
        return StepOutput(loss, terms, stepped, grad_norm, skipped)

    def epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the loader's batches, and end the last window with the last of them, however short it is.

        Its losses are divided by its real size, and its gradients reduced over ranks like those of the others, since
        ``len(loader)`` tells how many batches there are. Loaders without it, or with another number, end by ``flush``.
        After ``load_state_dict`` the first epoch is the rest of the one in which the state was saved: let the
        loader resume as well.
        """
        start, self._resumed_at = self._resumed_at, 0
        start = getattr(loader, "resumed_at", start)  # counted anew, if there are more ranks now, or fewer
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
        """Update with the batches of an unfinished window, averaged over their number, and wait for the outcome.

        For the end of an epoch whose length is no multiple of ``accumulate``; without it these batches count
        towards the next epoch's first update. ``epoch`` does it of itself.
        """
        if self._window.batches > 0:
            if self._ranks.number > 1:
                self._ranks.reduce_left_over()
            self._update()
        self._resolve_update()
        self._report_nonfinite()

    @property
    def updates(self) -> int:
        """How many updates were made, skipped ones not counted; waits for the last one."""
        self._resolve_update()
        return self._updates

    @property
    def ema(self) -> EMA | None:
        """The moving average of the weights, up to the last update, for which it waits; None without ``ema=``."""
        self._resolve_update()
        return self._ema

    def grad(self, loss: Tensor, inputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the loss's gradients by ``inputs``, for a loss made of them: a gradient penalty.

        >>> model = nn.Linear(4, 2)
        >>> def with_penalty(output, target):
        ...     loss = nn.functional.cross_entropy(output, target)
        ...     squares = [gradient.square().sum() for gradient in step.grad(loss, list(model.parameters()))]
        ...     return {"loss": loss, "penalty": 0.1 * sum(squares)}
        >>> step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), with_penalty)
        >>> sorted(step(torch.randn(8, 4), torch.randint(0, 2, (8,))).losses)
        ['loss', 'penalty']

        In fp16 the loss is scaled for the backward pass, and the gradients are unscaled, without a wait.
        """
        with torch.autocast(loss.device.type, enabled=False):
            gradients = torch.autograd.grad(self.scaler.scale(loss), inputs, create_graph=True)
            if not self.scaler.is_enabled():
                return gradients
            scale = self.scaler.scale(torch.ones((), device=loss.device))
            return tuple(gradient / scale for gradient in gradients)

    def profile_memory(self, batch: Any) -> StageMemory:
        """Return how much memory two steps on ``batch`` take, at data, forward, loss, backward and step.

        >>> model = nn.Linear(4, 2)
        >>> step = TrainStep(model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss())
        >>> memory = step.profile_memory((torch.randn(8, 4), torch.randint(0, 2, (8,))))
        >>> list(memory.first)
        ['data', 'forward', 'loss', 'backward', 'step']

        ``batch`` is what ``step(*batch)`` takes, on the device or still on the host. The steps are real; afterwards
        weights, buffers, optimizers, schedulers, random numbers and this step are as they were, from a copy on the
        host. With ``accumulate`` a step is a window: its last batch's stages, and the peaks of all. With several ranks
        all have to call this. Raises RuntimeError inside a window, and what a step raises.
        """
        return profile_memory(self, batch)

    def state_dict(self) -> dict[str, Any]:
        """Return all that training goes on with, but the model's and the optimizer's own state.

        >>> model = nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), ema=0.9)
        >>> saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step.state_dict()}

        Taken between two calls, inside a window too: it then holds the window's gradients, which under
        ``DistributedDataParallel`` are each rank's own. ``torch.load(weights_only=True)`` reads it. Raises
        RuntimeError inside a window of FSDP2, whose gradients cannot be read.
        """
        self._resolve_update()
        if self._window.batches > 0 and self._ranks.sharded:
            raise RuntimeError("inside a window FSDP2's gradients cannot be saved: take the state at a window's end")
        gradients = [_cloned(parameter.grad) for parameter in self._parameters()] if self._window.batches else []
        return {
            "batches": self._batches,
            "windows": self._windows,
            "updates": self._updates,
            "place": self._resumed_at if self._place is None else self._place + 1,
            "complaint": self._complaint,
            "scaler": self.scaler.state_dict(),
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "ema": None if self._ema is None else self._ema.state_dict(),
            "window": self._window.state_dict(),
            "watch": self._watch.state_dict(),
            "gradients": gradients,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, after the model and the optimizer have loaded theirs.

        Raises ValueError if the state was saved with or without what this step has: a scaler, an EMA, schedulers.
        """
        self._outcome = None  # what is loaded, and the optimizer's state loaded before, take its place
        _check_state(state, self)
        self._batches, self._windows, self._updates = state["batches"], state["windows"], state["updates"]
        self._resumed_at, self._complaint = state["place"], state["complaint"]
        self.scaler.load_state_dict(state["scaler"])
        for scheduler, saved in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        if self._ema is not None:
            self._ema.load_state_dict(state["ema"])
        self._window.load_state_dict(state["window"], self._device)
        self._watch.load_state_dict(state["watch"], self._device)
        parameters = self._parameters()
        for parameter, gradient in zip(parameters, state["gradients"] or [None] * len(parameters), strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)

    def _forward(self, batch: tuple[Any, ...]) -> object:
        if len(self._models) > 1 and self.loss_fn is not None:
            return self.loss_fn(*self._models, *batch)
        if self.loss_fn is None:
            return self._models[0](*batch)
        match batch:
            case inputs, targets:
                return self.loss_fn(self._models[0](inputs), targets)
        raise TypeError(
            f"with a loss_fn a step takes two arguments, inputs and targets; got {len(batch)}. "
            "Unpack the batch, step(*batch), or leave loss_fn out and let the model return its loss"
        )

    def _update(self) -> tuple[Tensor | None, Tensor | None]:
        """End the window; return the norm of its gradients, and whether the update was skipped."""
        try:
            # The device has this window's work before it, and the host asks about the last one's: a wait, if there
            # is any, leaves no gap.
            self._resolve_update()
            self._report_nonfinite()
            if (factor := self._window.factor(self._ranks)) is not None:
                scale(self._gradients(), factor)
            nonfinite = None if self.on_nonfinite == "ignore" else self._ranks.agree(self._watch.flag())
            grad_norm = self._clip()
            for gate in self._gates:
                gate.update(self.scaler, nonfinite)
            self.scaler.update()
            self._outcome = UpdateResult(self._gates, nonfinite, self._watch.seen)
            self._windows += 1
        finally:  # an update that fails, for want of memory say, ends its window too
            for optimizer in self._optimizers:
                optimizer.zero_grad(set_to_none=True)
            self._window.close()
            self._graphs.forget()
            self._watch.forget()
        skipped = self._outcome.skipped
        if self._outcome.known:
            self._resolve_update()
        elif self._ema is not None:
            self._ema.hold_buffers()
        return grad_norm, skipped

    def _clip(self) -> Tensor | None:
        """Clip each optimizer's gradients for themselves, lest inf in one's make NaN of another's."""
        if self.max_norm is None and self.clip_value is None:
            return None
        for gate in self._gates:
            gate.unscale(self.scaler)
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(self._parameters(), self.clip_value)
            return None
        assert self.max_norm is not None
        norms = [nn.utils.clip_grad_norm_(_parameters(each), self.max_norm) for each in self._optimizers]
        norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))

    def _resolve_update(self) -> None:
        """Learn what came of the last update, and move what moves with the updates that were made."""
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        skipped, is_nonfinite = outcome.read()
        for gate, is_skipped in zip(self._gates, skipped, strict=True):
            gate.settle(skipped=is_skipped)
            for scheduler in self._schedulers:
                if scheduler.optimizer is gate.optimizer and not is_skipped:
                    scheduler.step()
        if not all(skipped):
            self._updates += 1
            if self._ema is not None:
                self._ema.update()
        if is_nonfinite:
            self._complaint = describe(
                outcome.seen, self._windows, skipped=all(gate.heeds_veto for gate in self._gates)
            )

    def _report_nonfinite(self) -> None:
        complaint, self._complaint = self._complaint, None
        if complaint is not None and self.on_nonfinite == "raise":
            raise FloatingPointError(complaint)
        if complaint is not None:
            warnings.warn(complaint, RuntimeWarning, stacklevel=4)

    def _parameters(self) -> list[Tensor]:
        return [parameter for optimizer in self._optimizers for parameter in _parameters(optimizer)]

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters() if parameter.grad is not None]


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple, nn.ModuleList)) else [given]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _cloned(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach().clone()


def _settle_before_states_are_taken(step: TrainStep) -> None:
    """Let an optimizer's state be that after its last update, whatever the host knew of it when asked."""
    known = weakref.ref(step)

    def settle(_: Optimizer) -> None:
        if (still := known()) is not None:
            still._resolve_update()  # noqa: SLF001

    for optimizer in step._optimizers:  # noqa: SLF001
        weakref.finalize(step, optimizer.register_state_dict_pre_hook(settle).remove)


def _check_state(state: Mapping[str, Any], step: TrainStep) -> None:
    for what, was, now in (
        ("a scaler at work", state["scaler"], step.scaler.is_enabled()),
        ("an EMA", state["ema"], step.ema),
        ("a scheduler", state["schedulers"], step.scheduler),
    ):
        if bool(was) is not bool(now):
            saved, made = ("with", "without") if was else ("without", "with")
            raise ValueError(f"the state was saved {saved} {what}, but this step was made {made}. Make it as it was")
