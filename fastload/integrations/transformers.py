"""Hugging Face: ``Prefetched``, a mixin for ``transformers.Trainer`` whose loaders prefetch and transform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastload.integrations.accelerate import skip_first_batches
from fastload.loader import PrefetchLoader
from fastload.prefetch.slots import IN_HAND

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from transformers import Trainer as Base
else:
    Base = object

__all__ = ["Prefetched"]


class Prefetched(Base):
    """Mixin for ``Trainer``: ``prefetch`` says what comes around its loaders.

    Example::

        class PrefetchedTrainer(Prefetched, Trainer):
            def prefetch(self, loader, training):
                transform = training_transform if training else evaluation_transform
                return fl.PrefetchLoader(loader, transform=transform, device=self.args.device, images="pixel_values")

    ``train``, ``evaluate`` and ``predict`` use it, and ``resume_from_checkpoint`` goes on with the samples and pixels
    of the run that was interrupted. The ``Trainer`` asks for ``gradient_accumulation_steps`` batches at once, and
    keeps them: as many are on the device beside the ``depth`` that wait. With ``log_input = True`` in the class, what
    the ``Trainer`` logs of training has how long it waited for its input, with the other ``stats.scalars()``.
    """

    log_input = False
    _training: PrefetchLoader | None = None

    def prefetch(self, loader: DataLoader[Any], training: bool) -> PrefetchLoader:
        """Return a ``PrefetchLoader`` around one of the ``Trainer``'s prepared loaders."""
        raise NotImplementedError(f"{type(self).__name__} must define prefetch(self, loader, training)")

    def get_train_dataloader(self) -> Any:
        loader = self.prefetch(super().get_train_dataloader(), training=True)
        held = self.args.gradient_accumulation_steps
        if loader.static is not None and held > IN_HAND:
            raise ValueError(
                f"the Trainer holds gradient_accumulation_steps={held} batches at once, and with static=True only "
                f"{IN_HAND} are valid: make the PrefetchLoader without static"
            )
        self._training = loader
        return loader

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.log_input and "loss" in logs and self._training is not None:
            logs |= self._training.stats.scalars()
        super().log(logs, *args, **kwargs)

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        return self.prefetch(super().get_eval_dataloader(*args, **kwargs), training=False)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        return self.prefetch(super().get_test_dataloader(*args, **kwargs), training=False)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with _skipping_inside():
            return super().train(*args, **kwargs)


@contextmanager
def _skipping_inside() -> Iterator[None]:
    """Let the ``Trainer`` skip batches inside a ``PrefetchLoader``: it has no method to override for it."""
    trainer: Any = import_module("transformers.trainer")
    before = trainer.skip_first_batches
    trainer.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        trainer.skip_first_batches = before
