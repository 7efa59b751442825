"""``Prefetch``: a Lightning callback that puts a ``PrefetchLoader`` around each of the trainer's loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any
from weakref import WeakSet

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from fastload.arguments import flag
from fastload.loader import PrefetchLoader
from fastload.resume.samplers import length_of

__all__ = ["Prefetch"]

Transform = Callable[..., Any]


class Prefetch(Callback):
    """Copy and transform the batches of a trainer's loaders ahead of time.

    >>> from lightning.pytorch import Trainer
    >>> from fastload import transforms as T
    >>> prefetch = Prefetch(train=T.RandomHorizontalFlip(), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    >>> trainer = Trainer(accelerator="cpu", callbacks=[prefetch], logger=False, enable_checkpointing=False)

    The module or data module returns plain loaders. Lightning prepares them as ever (samplers for ranks,
    ``overfit_batches``, ``reload_dataloaders_every_n_epochs``), then each gets a ``PrefetchLoader`` around it, on the
    trainer's device. Checkpoints in the middle of an epoch resume with the next batch, on any rank.

    Args:
        train: transform of training batches.
        evaluate: transform of batches for validation, test and prediction.
        log_input: whether to log how long training waits for its input, with the other ``stats.scalars()``, every
            ``log_every_n_steps`` of the trainer.
        settings: other arguments of ``PrefetchLoader``, for all loaders, except ``device``.

    Raises:
        TypeError, ValueError: as ``PrefetchLoader``; or, when the trainer runs, a loader is a ``PrefetchLoader``.
    """

    def __init__(
        self,
        train: Transform | None = None,
        evaluate: Transform | None = None,
        *,
        log_input: bool = False,
        **settings: Any,
    ) -> None:
        self._log_input = flag("log_input", log_input)
        self._settings = {True: {"transform": train, **settings}, False: {"transform": evaluate, **settings}}
        for each in self._settings.values():
            PrefetchLoader((), device="cpu", **each)  # to refuse here what it would refuse in the run
        self._states: list[Mapping[str, Any]] = []
        self._training: WeakSet[LightningLoader] = WeakSet()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Wrap each loader after the strategy has prepared it."""
        strategy = trainer.strategy
        prepare = type(strategy).process_dataloader

        def process_dataloader(loader: object) -> PrefetchLoader:
            return self._wrapped(trainer, prepare(strategy, loader))

        self._states = []
        vars(strategy)["process_dataloader"] = process_dataloader

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the strategy as it was."""
        vars(trainer.strategy).pop("process_dataloader", None)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the loaders' states: Lightning loads none if ``configure_optimizers`` asked for the number of steps."""
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        self._states = list(loop.get("state_dict", {}).get("combined_loader", ()))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the loaders' pass with Lightning's epoch, before checkpoints are saved; log what they measured."""
        self._states = []
        if self._log_input and (batch_idx + 1) % logging_interval(trainer) == 0:
            for loader, logger in product(self._training, trainer.loggers):
                logger.log_metrics(loader.stats.scalars(), step=trainer.global_step)
        if trainer.is_last_batch:
            self.on_train_epoch_end()

    @override
    def on_train_epoch_end(self, *_: Any) -> None:
        for loader in self._training:
            loader.end_pass()

    def _wrapped(self, trainer: Trainer, loader: Any) -> LightningLoader:
        if isinstance(loader, PrefetchLoader):
            raise TypeError(
                "the Prefetch callback wraps loaders after Lightning has given them their samplers; got a loader that "
                "is a PrefetchLoader already: return the loader that it wraps, and pass its arguments to Prefetch"
            )
        settings = self._settings[trainer.training]
        wrapped = LightningLoader(loader, **settings, device=trainer.strategy.root_device)
        if trainer.training:
            self._training.add(wrapped)
            wrapped.set_epoch(trainer.current_epoch)
            if self._states:
                wrapped.load_state_dict(self._states[0])
                self._states = [*self._states[1:], self._states[0]]  # loaders may be made again before the first batch
        return wrapped


def logging_interval(trainer: Any) -> int:
    """The trainer's ``log_every_n_steps``, which its type does not have."""
    return int(trainer.log_every_n_steps)


# On what has them: the function that seeds workers, and, to end persistent workers, the iterator that holds them.
SET_BY_LIGHTNING = ("worker_init_fn", "_iterator")


class LightningLoader(PrefetchLoader):
    """A ``PrefetchLoader`` that fits the way Lightning handles loaders."""

    _before: dict[str, Any] | None = None  # the state before the batch that was yielded last

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name in SET_BY_LIGHTNING:
            setattr(self.loader, name, value)
        else:
            super().__setattr__(name, value)

    @override
    def __iter__(self) -> Iterator[Any]:
        """A pass that begins with its first batch: Lightning calls ``iter`` before it has set epoch and RNG.

        Of a loader without a length Lightning trains with a batch when it has the next, to know the last one.
        """
        is_fetched_ahead = length_of(self.loader) is None
        self._before = super().state_dict() if is_fetched_ahead else None
        for batch in super().__iter__():
            yield batch
            self._before = super().state_dict() if is_fetched_ahead else None
        self._before = None

    def end_pass(self) -> None:
        """End the pass where Lightning's epoch ends, which may be before the loader does."""
        self.close()
        self._before = None  # the pass may have been left at a batch
        if self._progress is not None:
            self._progress.ended = True

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self._before is None else self._before

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._before = None
