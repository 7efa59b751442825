"""``PrefetchLoader``: a loader's batches, copied to the device and transformed there ahead of time."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeGuard

import torch
from torch.utils.data import DataLoader
from typing_extensions import Self, TypeVar

from fastload.arguments import integer, not_a_class, quoted, resolved_device
from fastload.data.by_value import sending_by_value
from fastload.data.vision_collate import collates_by_default, keep_vision_types
from fastload.environment import float_on
from fastload.prefetch.decode_ahead import DecodeStage, decoder_of
from fastload.prefetch.flag import Flag
from fastload.prefetch.garbage import garbage_kept_from_workers
from fastload.prefetch.iterator import BatchSource, PrefetchIterator
from fastload.prefetch.preparer import Preparer
from fastload.prefetch.slots import SlotPool
from fastload.prefetch.static import Static
from fastload.report.measured import MeasuredLoader
from fastload.report.setup import Setup
from fastload.resume.begun import is_begun_elsewhere
from fastload.resume.consumer_state import ConsumerState, pull_from, source_of
from fastload.resume.guarded_collate import GuardedCollate
from fastload.resume.position import Latest, Progress
from fastload.resume.samplers import SamplerState
from fastload.resume.share import Share
from fastload.resume.state import Resumption, skipping, state_after
from fastload.resume.wrapped_loader import torch_loader_in, yields_fresh_batches
from fastload.stats.clock import LoaderClock
from fastload.streams import side_stream
from fastload.structure.field import Rule, checked_rule
from fastload.transforms import Compose, Key, Normalize
from fastload.transforms.draws import draws

__all__ = ["PrefetchLoader"]


Batch = TypeVar("Batch", default=Any)

MOST_SEED, EPOCHS = 2**63 - 1, 2**32

# The attributes of a DataLoader that can be set. Set on a PrefetchLoader, they are set on the loader inside.
LOADERS_OWN = frozenset(
    {
        "batch_sampler", "batch_size", "collate_fn", "dataset", "drop_last", "generator", "in_order",
        "multiprocessing_context", "num_workers", "persistent_workers", "pin_memory", "pin_memory_device",
        "prefetch_factor", "sampler", "timeout", "worker_init_fn",
    }
)  # fmt: skip


class PrefetchLoader(MeasuredLoader, Generic[Batch]):
    """Wrap a loader so that its batches are copied and transformed while the consumer computes.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    >>> loader = DataLoader(TensorDataset(images, torch.arange(8)), batch_size=4)
    >>> for images, labels in PrefetchLoader(loader, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2), device="cpu"):
    ...     print(images.dtype, labels)
    torch.float32 tensor([0, 1, 2, 3])
    torch.float32 tensor([4, 5, 6, 7])

    For a type checker, ``PrefetchLoader[tuple[Tensor, Tensor]](loader)`` yields such batches; without it, ``Any``.

    A background thread pulls batches from ``loader``, copies them to ``device`` on a side stream and applies
    ``transform`` to their images there. The consumer gets the same batches in the same order; nested structures keep
    their types. The consumer's thread never waits for the device, and its stream waits only for its own batch. All
    other attributes are those of ``loader``; a ``DataLoader`` made from them raises an error, and yields no batch
    without the transform. docs/guarantees.md states what you can rely on.

    Args:
        loader: any iterable of batches; ``pin_memory=True`` there saves a copy here. Files are decoded further ahead of
            a ``DataLoader`` with workers, also inside another loader (as ``loader``, ``dataloader``, or ``WebLoader``'s
            pipeline). ``yields_fresh_batches = True`` says of any loader that it writes to no batch that it has
            yielded, so this can be done; False that it does.
        mean: one number a channel, as fractions of the full scale (ImageNet's is 0.485, …); numbers above 1 are read as
            being in 0 to 255. Images come out as ``(images / 255 - mean) / std``; uint8 in, (N, C, H, W) or
            (N, H, W, C), floating-point images being taken as scaled to 0 to 1 already.
        std: as ``mean``, and in its unit.
        device: where batches go; the current accelerator if there is one, else the CPU.
        transform: applied to the images on the device, before normalisation: a transform of ``fastload.transforms`` or
            any callable that takes and returns a batch of images.
        dtype: of the normalised images; float32 by default. ``"auto"`` is what ``TrainStep(precision="auto")`` computes
            in there: bfloat16, float16, or float32 on the CPU. Needs ``mean`` and ``std``.
        memory_format: of the normalised images, such as ``torch.channels_last``. Needs ``mean`` and ``std``.
        depth: how many batches may wait for the consumer, at least 1. At most ``depth + 2`` are on the device,
            and the images of one more where files are decoded there.
        static: whether batches have fixed addresses, as CUDA graphs need them: batch ``k + depth + 2`` takes the memory
            of batch ``k``. So a batch is valid until the next but one is asked for. True, or what happens to a batch
            with fewer samples: ``"dynamic"`` (as True), ``"drop"`` or ``"pad"``; see :class:`fastload.Static`.
        seed: of the transform's randomness, from 0 to 2**63 - 1. Random parameters depend on the seed, the epoch and a
            sample's place in the epoch, and on nothing else.
        shard: this rank and the number of ranks, where ``loader`` yields samples of this rank's own and neither its
            sampler nor torch.distributed knows; ``(0, 1)`` where all ranks are to see the same, augmented alike.
            docs/randomness.md says what is found out without it.
        images: which field of a batch holds the images: a key such as ``"pixel_values"``, an index, a path such as
            ``(1, "image")``, a list of these, or a function of the batch that returns its images.

    Raises:
        TypeError: ``loader`` is not iterable, ``transform`` not callable, or ``images`` not one of these; or the
            transform begins with ``T.DecodeJpeg``, and ``loader`` is a ``DataLoader`` without a ``collate_fn``.
        ValueError: ``depth``, ``static``, ``seed`` or ``shard`` is out of its range, or ``mean``, ``std``, ``dtype``
            and ``memory_format`` do not fit together.

    Without ``images``, the images are files packed by ``fl.collate``; else what is marked as ``tv_tensors``; else the
    first plain tensor of the batch. Where images are transformed, a ``DataLoader`` with PyTorch's ``default_collate``
    keeps the types of ``tv_tensors`` from here on, so that masks and boxes follow them. ``stats`` has where time went
    so far, and how many files were decoded where, skipped, or replaced by black images; ``report()`` says what to
    change.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        *,
        device: torch.device | str | int | None = None,
        transform: Callable[..., Any] | None = None,
        dtype: torch.dtype | str | None = None,
        memory_format: torch.memory_format | None = None,
        depth: int = 3,
        static: bool | str | Static = False,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
        images: Rule = None,
    ) -> None:
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise TypeError(f"loader must be an iterable of batches, such as a DataLoader; got {type(loader).__name__}")
        depth = integer("depth", depth, least=1)
        seed = integer("seed", seed, 0, MOST_SEED)
        ConsumerState.of(loader)  # refuses what cannot be read ahead
        self.loader = loader
        self._device = resolved_device(device)
        self.transform = _plan(transform, mean, std, float_on(self._device, dtype), memory_format)
        if decoder_of(self.transform) is not None and collates_by_default(loader):
            raise TypeError(
                "T.DecodeJpeg decodes files packed by fl.collate, and the DataLoader has PyTorch's default_collate: "
                "pass collate_fn=fl.collate to the DataLoader"
            )
        if self.transform is not None:
            keep_vision_types(torch_loader_in(loader))
        self._depth = depth
        self._static = Static.of(static)
        self.seed = seed
        self._shard = _checked_shard(shard)
        self._images = checked_rule("images", images)
        self._samplers_epoch = self._samplers.epoch
        self.epoch = self._samplers_epoch if _is_epoch(self._samplers_epoch) else 0
        self._resumption: Resumption | None = None
        self._begin_unused()

    def _begin_unused(self) -> None:
        """What a loader has beside its settings and its place in training."""
        self.clock = LoaderClock()
        self._progress: Progress | None = None  # of the pass that began last
        self._latest = Latest()
        self._resumed: Resumption | None = None  # where the last pass began
        self._identity = object()  # names this loader among those of a data set
        self._is_epoch_set = self._was_epoch_set = False  # that of the next and of the last pass, by the user
        self._side = side_stream(self.device)
        self._begin_without_passes()

    def _begin_without_passes(self) -> None:
        self._process = os.getpid()
        self._spare: list[SlotPool] = []
        self._passes: weakref.WeakSet[PrefetchIterator] = weakref.WeakSet()
        self._ends: weakref.WeakSet[Flag] = weakref.WeakSet()  # each is kept by its pass's thread

    def __getstate__(self) -> dict[str, Any]:
        """For a pickled or copied loader: settings, the wrapped loader, epoch and loaded state, but no pass."""
        unused = (
            "clock",
            "_progress",
            "_latest",
            "_resumed",
            "_identity",
            "_is_epoch_set",
            "_was_epoch_set",
            "_side",
            "_process",
            "_spare",
            "_passes",
            "_ends",
        )
        return {name: value for name, value in vars(self).items() if name not in unused}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_unused()

    def __repr__(self) -> str:
        settings: dict[str, Any] = {"transform": self.transform, "static": self.static, "device": str(self.device)}
        settings |= {"depth": self.depth, "seed": self.seed, "epoch": self.epoch}
        told = "".join(f", {name}={value!r}" for name, value in settings.items() if value is not None)
        return f"{type(self).__name__}({type(self.loader).__name__}{told})"

    def rewrapped(self, loader: Iterable[Any]) -> PrefetchLoader:
        """Return a new ``PrefetchLoader`` with the settings of this one around another loader.

        >>> halved = PrefetchLoader([torch.ones(1, 1, 1, 2)], transform=lambda images: images / 2, device="cpu", seed=7)
        >>> other = halved.rewrapped([torch.zeros(1, 1, 1, 2) + 3])
        >>> next(iter(other)), other.seed
        (tensor([[[[1.5000, 1.5000]]]]), 7)

        Frameworks use it to put samplers of theirs into the wrapped loader. The next pass has this loader's epoch; its
        open passes, loaded state and ``stats`` are not carried over.

        Raises:
            TypeError: ``loader`` is not iterable.
        """
        other = PrefetchLoader(
            loader,
            transform=self.transform,
            device=self.device,
            depth=self.depth,
            static=self.static or False,
            seed=self.seed,
            shard=self._shard,
            images=self._images,
        )
        other.epoch = self.epoch
        if self._is_epoch_set:
            other.set_epoch(self.epoch)
        return other

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        return self._device

    @property
    def depth(self) -> int:
        """How many batches may wait for the consumer."""
        return self._depth

    @property
    def static(self) -> Static | None:
        """How batches come at fixed addresses; None if they do not."""
        return self._static

    def __iter__(self) -> Iterator[Batch]:
        self._leave_passes_of_parent()
        if isinstance(self.loader, Iterator) and (live := self._live_pass()):
            return live  # iter() of an iterator is the iterator
        self._end_passes_that_share_an_iterator()
        self._settle_epoch()
        if self._resumption is not None and self.epoch in self._resumption.finished:
            self.epoch += 1
            return iter(())
        samplers, resumption = self._samplers, self._resumption
        self._remark(samplers.share)
        consumer = ConsumerState.of(self.loader)
        if consumer is not None:
            consumer.begin(self.epoch)
        start = resumption.start if resumption else samplers.start()
        with garbage_kept_from_workers(), sending_by_value(source_of(self.loader)):
            batches = resumption.begin() if resumption else pull_from(self.loader)
        progress = Progress(self.loader, self.epoch, start, resumption.first if resumption else None)
        self._side.follow_consumer()
        # The slots of the last pass know which batches the consumer may still hold: so memory is bounded across epochs.
        slots = self._spare.pop() if self._spare else SlotPool(self.depth, self.static)
        share = samplers.share
        key = Key(self.seed, self.epoch, place=share.first, stride=share.stride, step=share.ranks)
        samples = progress.yielded.samples
        prepare = Preparer(
            self._side,
            self.transform,
            key,
            self.clock.files,
            samples,
            self._images,
            samplers,
            by_default=collates_by_default(self.loader) and type(self.loader).__iter__ is DataLoader.__iter__,
        )
        self._samplers_epoch = progress.samplers_epoch
        self.epoch += 1
        self._progress = self._latest.progress = progress
        self._resumption, self._resumed = None, resumption
        self._is_epoch_set, self._was_epoch_set = False, self._is_epoch_set
        decode = DecodeStage.of(self.transform, self.device) if yields_fresh_batches(self.loader) else None
        source = BatchSource(batches, progress, self.clock.begin_pass(batches, self._side), consumer)
        one_pass = PrefetchIterator(source, decode, slots, prepare, self._spare, self._latest)
        self._passes.add(one_pass)
        self._ends.add(one_pass.ended)
        return one_pass

    @property
    def _samplers(self) -> SamplerState:
        return SamplerState(self.loader, Share.of(self.loader, self._shard))

    def _settle_epoch(self) -> None:
        """Decide which epoch the next pass is; docs/randomness.md has the rule."""
        last, before = self._progress, self._samplers_epoch
        if last is not None and last.ended and not self._is_epoch_set:
            before = last.samplers_epoch
        given = self._samplers.epoch
        if given != before and _is_epoch(given):
            self._begin_epoch(given)
            return
        if last is None or not last.is_untouched or self._is_epoch_set:
            return
        if self._was_epoch_set or not self._live_pass():  # Lightning begins passes that it does not use
            self.epoch, self._resumption, self._is_epoch_set = last.epoch, self._resumed, self._was_epoch_set

    def _begin_epoch(self, epoch: int) -> None:
        skipped = None
        if self._resumption and epoch != self._resumption.epoch and epoch not in self._resumption.finished:
            skipped = self._resumption.skipped
            if skipped is None:
                self._resumption.give_up(epoch)
            self._resumption = None
        self.epoch, self._is_epoch_set = epoch, True
        if skipped is not None:
            self.skip(skipped)

    def _remark(self, share: Share) -> None:
        """Say at the first pass what makes ranks or epochs alike."""
        data = getattr(self.loader, "dataset", self.loader)
        is_repeated = draws(self.transform) and is_begun_elsewhere(data, (self.seed, self.epoch, share), self._identity)
        if self._progress is not None:
            return
        remarks = [share.remark(self.loader)]
        if is_repeated and not self._is_epoch_set:
            remarks.append(
                f"another PrefetchLoader has begun epoch {self.epoch} of this data set with seed {self.seed}, and "
                "random transforms draw the same again: a new PrefetchLoader begins at its sampler's epoch, else at 0. "
                "Call loader.set_epoch(epoch) before each pass; in Lightning, set_epoch(self.current_epoch) in "
                "train_dataloader()"
            )
        for remark in filter(None, remarks):
            warnings.warn(remark, UserWarning, stacklevel=3)

    def _live_pass(self) -> PrefetchIterator | None:
        return next((each for each in self._passes if each.close.alive), None)

    def _leave_passes_of_parent(self) -> None:
        """In a process forked from the one that the loader was used in, begin with no pass.

        Raises:
            RuntimeError: all passes pull from one iterator, which is the other process's.
        """
        if self._process == os.getpid():
            return
        if self._has_one_iterator and self._progress is not None:
            raise RuntimeError(
                f"the loader's iterator, or its persistent workers, are those of process {self._process}, from which "
                "this one was forked: make a new loader here"
            )
        self._begin_without_passes()

    @property
    def _has_one_iterator(self) -> bool:
        """Whether all passes pull from one iterator."""
        return getattr(self.loader, "persistent_workers", False) or isinstance(self.loader, Iterator)

    def _end_passes_that_share_an_iterator(self) -> None:
        """If all passes pull from one iterator, end the older ones, which would take batches of the new one."""
        if self._has_one_iterator:
            self.close()
            for ended in list(self._ends):
                ended.wait()

    @property
    def _rank(self) -> int:
        return self._samplers.share.rank

    @property
    def _setup(self) -> Setup:
        return Setup.of(self.loader, self.device.type, self.depth, self.clock.images)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # copy and pickle ask for these before there is a loader
            raise AttributeError(name)
        value = getattr(self.loader, name)
        return GuardedCollate(value) if name == "collate_fn" and value is not None else value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a ``DataLoader``'s attribute on the wrapped one, such as the ``worker_init_fn`` that Lightning sets."""
        if name in LOADERS_OWN and hasattr(self.loader, name):
            setattr(self.loader, name, value)
        else:
            super().__setattr__(name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all passes: iterators stop, threads and workers end. Persistent workers stay with the loader."""
        for one_pass in list(self._passes):
            one_pass.close()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of ``epoch``; without calls, epochs count up.

        The wrapped loader's ``set_epoch`` is called, or else those of its samplers and its data set, if they have it.

        After ``load_state_dict``, passing the saved epoch resumes it; any other epoch starts at its first batch.

        Raises:
            TypeError: ``epoch`` is not an int.
            ValueError: it is not from 0 to 2**32 - 1.
        """
        epoch = integer("epoch", epoch, 0, EPOCHS - 1)
        self._samplers.set_epoch(epoch)
        self._begin_epoch(epoch)
        self._samplers_epoch = self._samplers.epoch

    @property
    def resumed_at(self) -> int:
        """How many batches of the epoch come before the one at which the next pass begins."""
        if self._resumption is None:
            return 0
        return self._resumption.finished.get(self.epoch, self._resumption.first.batches)

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was yielded last, whatever was prefetched beyond it.

        >>> loader = PrefetchLoader([torch.zeros(2), torch.ones(2), torch.ones(2)], device="cpu")
        >>> first = next(iter(loader))
        >>> resumed = PrefetchLoader([torch.zeros(2), torch.ones(2), torch.ones(2)], device="cpu")
        >>> resumed.load_state_dict(loader.state_dict())
        >>> len(list(resumed))
        2

        It holds numbers, strings, lists and tensors, which ``torch.load`` reads with ``weights_only``, and the wrapped
        loader's own state if it has one. After the last batch of an epoch it is the state before the next epoch;
        ``set_epoch`` with the old one is followed by no batch of it. Of a ``DataLoader`` with ``in_order=False`` only a
        state from between two epochs can be loaded; a warning says so of others.
        """
        if self._resumption:
            return dict(self._resumption.state)
        # A stateful loader that was never iterated over starts its workers here.
        with garbage_kept_from_workers(), sending_by_value(source_of(self.loader)):
            state = state_after(self._latest.progress, self._samplers, self.seed, self.epoch)
        if state["finished"] is not None and self._latest.progress is not self._progress:
            state["epoch"] = self.epoch  # a pass within this one has had the epoch that follows it
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where ``state`` was taken, in a loader made like the one that it was taken from; open passes end.

        Samples, order and augmentations are those of the uninterrupted run, in this epoch and in later ones.
        docs/resume.md states the conditions. How the batches before are skipped:

        - A wrapped loader with ``load_state_dict``, such as torchdata's ``StatefulDataLoader``, does so itself.
        - Of a ``DataLoader`` over a map-style data set, only their indices are drawn. The batch size and the number of
          ranks may change.
        - Of an iterable data set, or any other iterable, they are pulled in ``iter()`` and dropped, neither copied nor
          transformed.

        If no ranks share the epoch, torch's default CPU generator is restored too, since shuffling draws from it.

        Raises:
            TypeError: ``state`` is no mapping.
            ValueError: it is no state of a ``PrefetchLoader``; or the seed, sampler or number of samples differ, or the
                batch size, ranks or workers where they may not change; or it was taken within an epoch of a loader
                with ``in_order=False``. At the next ``iter()``: the epoch has fewer batches than the state has seen,
                or the last of those, read again, is another.
        """
        resumption = Resumption(state, self._samplers, self.seed)
        self.close()
        resumption.restore()
        self._resumption = resumption
        self._samplers_epoch = self._samplers.epoch
        self.epoch, self._is_epoch_set = resumption.epoch, True

    def skip(self, batches: int) -> None:
        """Begin the next pass after so many more batches of its epoch, as if the ones before had been yielded.

        >>> loader = PrefetchLoader([torch.zeros(2), torch.ones(2), torch.ones(2)], device="cpu")
        >>> loader.skip(2)
        >>> len(list(loader)), len(list(loader))
        (1, 3)

        Order and augmentations are those of a whole pass; open passes end. Without a loaded state, ``set_epoch`` may
        come before or after it. Batches are taken to have ``batch_size`` samples. How they are skipped is what
        :meth:`load_state_dict` says.

        Raises:
            TypeError: ``batches`` is not an int.
            ValueError: it is negative; or, at the next ``iter()``, the epoch has fewer batches.
        """
        batches = integer("batches", batches, least=0)
        samplers, resumption = self._samplers, self._resumption
        state = resumption.state if resumption else state_after(None, samplers, self.seed, self.epoch)
        samples = samplers.share.run if samplers.share.run > 1 else samplers.batch_size or 1
        draws_anew = resumption is None or resumption.draws_anew or not resumption.first.drawn
        self.load_state_dict(skipping(state, batches, samples, draws_anew=draws_anew))
        assert self._resumption is not None
        if resumption is None or resumption.skipped is not None:
            self._resumption.skipped = batches + (resumption.skipped or 0 if resumption else 0)


def _plan(
    transform: Callable[..., Any] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
) -> Callable[..., Any] | None:
    """``transform``, then normalisation if ``mean`` and ``std`` are given."""
    not_a_class("transform must be an instance", transform)
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be callable on a batch of images; got {quoted(transform)}")
    if (mean is None) != (std is None):
        raise ValueError(f"mean and std go together; got mean={mean}, std={std}")
    if mean is None or std is None:
        if dtype is not None or memory_format is not None:
            raise ValueError(
                "dtype and memory_format are those of normalised images; got "
                f"dtype={dtype}, memory_format={memory_format} and no mean and std: give mean=[0, 0, 0], std=[1, 1, 1] "
                "to scale images to 0 to 1"
            )
        return transform
    steps = transform.transforms if isinstance(transform, Compose) else [transform]
    if any(isinstance(step, Normalize) for step in steps):
        raise ValueError(
            f"images would be normalised twice: leave out one; got mean={mean}, std={std} and T.Normalize in transform"
        )
    normalize = Normalize(
        mean, std, dtype=dtype or torch.float32, memory_format=memory_format or torch.contiguous_format
    )
    return normalize if transform is None else Compose([transform, normalize])


def _is_epoch(number: int | None) -> TypeGuard[int]:
    return number is not None and 0 <= number < EPOCHS


def _checked_shard(shard: tuple[int, int] | None) -> tuple[int, int] | None:
    if shard is None:
        return None
    if not isinstance(shard, Sequence) or isinstance(shard, str) or len(shard) != len(("rank", "ranks")):
        raise TypeError(f"shard must be two ints, the rank and the number of ranks; got {quoted(shard)}")
    rank, ranks = (integer("shard", number) for number in shard)
    if not 0 <= rank < ranks:
        raise ValueError(f"shard must be a rank from 0, and a greater number of ranks; got {quoted(shard)}")
    return rank, ranks
