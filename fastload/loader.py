"""``PrefetchLoader``: the batches of any loader, on the device before they are asked for."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import torch

from fastload.images import BATCHED_DIMS, find_images, refuse_targets, remark_on_range
from fastload.nested import Path, tensors
from fastload.streams import NoStream, Passed, Point, SideStream, side_stream
from fastload.transfer import Sent, move_own, send
from fastload.transforms import Compose, Key, Normalize, Transform

__all__ = ["PrefetchLoader"]

# What the consumer may hold beside the `depth` batches that wait for it: the one it works on, and the one before, which
# a `for` loop lets go of only after the next has arrived.
IN_HAND = 2

# How long close() waits for a thread that is inside the wrapped loader, which nobody can interrupt, in seconds.
GRACE = 0.8


class PrefetchLoader:
    """Wrap a loader so that its batches are copied and transformed while the consumer computes.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    >>> loader = DataLoader(TensorDataset(images, torch.arange(8)), batch_size=4)
    >>> for images, labels in PrefetchLoader(loader, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2), device="cpu"):
    ...     print(images.dtype, labels)
    torch.float32 tensor([0, 1, 2, 3])
    torch.float32 tensor([4, 5, 6, 7])

    A background thread pulls batches from ``loader``, copies them to ``device`` on a stream of its own and applies
    ``transform`` to their images there. The consumer gets the same batches in the same order, any nested structure with
    its types kept; its thread never waits for the device, and its stream waits for its own batch only. Every other
    attribute is the wrapped loader's. docs/guarantees.md states what is promised.

    Args:
        loader: any iterable of batches; ``pin_memory=True`` there saves a copy here.
        mean, std: one number a channel, as fractions of the full scale (ImageNet's mean is 0.485, …); numbers above 1
            are read as being in 0 to 255. Images come out as ``(images / 255 - mean) / std``; uint8 in, (N, C, H, W)
            or (N, H, W, C), floating-point images being taken as scaled to 0 to 1 already.
        device: where batches go; the current accelerator if there is one, else the CPU.
        transform: applied to the images on the device, before normalisation: a transform of ``fastload.transforms`` or
            any callable that takes and returns a batch of images.
        dtype: of the normalised images; float32 by default. Needs ``mean`` and ``std``.
        memory_format: of the normalised images, such as ``torch.channels_last``. Needs ``mean`` and ``std``.
        depth: how many batches may wait for the consumer, at least 1. At most ``depth + 2`` are on the device.
        seed: of the transform's randomness, which depends on it, the epoch and a sample's place in the epoch alone.

    Raises:
        TypeError: ``loader`` is not iterable, or ``transform`` not callable.
        ValueError: ``depth`` is below 1, or ``mean``, ``std``, ``dtype`` and ``memory_format`` do not fit together.

    Which tensors are images? Those that are ``tv_tensors``; else the first plain tensor of the batch.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        *,
        device: torch.device | str | int | None = None,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        depth: int = 2,
        seed: int = 0,
    ) -> None:
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise TypeError(f"loader must be an iterable of batches, such as a DataLoader; got {type(loader).__name__}")
        if depth < 1:
            raise ValueError(f"depth must be at least 1, the number of batches that may wait; got {depth}")
        self.loader = loader
        self.device = _resolve(device)
        self.transform = _plan(transform, mean, std, dtype, memory_format)
        self.depth = depth
        self.seed = seed
        self.epoch = 0
        self._side = side_stream(self.device)
        self._spare: list[_Room] = []
        self._passes: weakref.WeakSet[_Pass] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        self._side.follow_consumer()
        # The last pass's room knows which batches the consumer may still hold: memory is bounded across epochs too.
        room = self._spare.pop() if self._spare else _Room(self.depth + IN_HAND)
        prepare = _Preparation(self._side, self.transform, Key(self.seed, self.epoch))
        self.epoch += 1
        one_pass = _Pass(batches, prepare, room, self._spare)
        self._passes.add(one_pass)
        return one_pass

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet: a copy is being made, or __init__ has failed
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all passes: their iterators stop, their threads and the workers they started go. Safe to call twice."""
        for one_pass in list(self._passes):
            one_pass.close()

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass as epoch ``epoch``, here and in the wrapped loader or its samplers; else epochs count up."""
        self.epoch = epoch
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
            return
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        samplers = (getattr(self.loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
        for sampler in {id(sampler): sampler for sampler in samplers}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)


class _Pass(Iterator[Any]):
    """One pass over the loader: the consumer's end of what a background thread prepares."""

    def __init__(self, batches: Iterator[Any], prepare: _Preparation, room: _Room, spare: list[_Room]) -> None:
        self._side = prepare.side
        self._room = room
        self._arrivals: SimpleQueue[_Arrival | _End] = SimpleQueue()
        thread = threading.Thread(
            target=_feed, args=(batches, prepare, room, self._arrivals), name="fastload-prefetch", daemon=True
        )
        thread.start()
        # The thread does not know of the pass, so letting go of the pass ends the thread, and so does the interpreter's end.
        self.close = weakref.finalize(self, _close, thread, self._arrivals, room, spare)

    def __next__(self) -> Any:
        if not self.close.alive:
            raise StopIteration
        self._room.leave(self._side)
        arrival = self._arrivals.get()
        if isinstance(arrival, _End):
            self.close()
            raise _visible(arrival.error)
        self._room.in_hand += 1
        if arrival.remark:
            warnings.warn(arrival.remark, UserWarning, stacklevel=2)
        sent = arrival.sent
        self._side.hand_over(sent.memory(), arrival.ready)
        return move_own(sent.batch, self._side.device) if sent.has_own else sent.batch


def _feed(
    batches: Iterator[Any], prepare: _Preparation, room: _Room, arrivals: SimpleQueue[_Arrival | _End]
) -> None:
    """The background thread: wait for room, pull, prepare; until the end, an error, or the pass is closed."""
    try:
        prepare.side.adopt_thread()
        with torch.no_grad():
            while room.enter():
                batch = next(batches, _End())
                if isinstance(batch, _End):
                    arrivals.put(batch)
                    return
                arrivals.put(prepare(batch))
                del batch  # pinned memory, not to be held while the loader takes its time
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is the consumer's to see)
        arrivals.put(_End(error))
    finally:
        del batches  # an error's traceback keeps this frame, which must not keep the loader's workers


def _close(
    thread: threading.Thread, arrivals: SimpleQueue[_Arrival | _End], room: _Room, spare: list[_Room]
) -> None:
    room.close()
    if thread is not threading.current_thread():  # where the garbage collector may have found the pass
        thread.join(GRACE)
    _drain(arrivals)
    arrivals.put(_End())  # for a consumer that waits in another thread
    if not thread.is_alive():
        room.reopen()
        spare.append(room)


def _visible(error: BaseException | None) -> BaseException:
    """What the consumer's ``next`` raises; a StopIteration out of a transform would end the loop as if nothing had happened."""
    if isinstance(error, StopIteration):
        stray = RuntimeError("the loader or a transform raised StopIteration")
        stray.__cause__ = error
        return stray
    return error or StopIteration()


class _Room:
    """Places for batches on the device: those that wait for the consumer, and those in its hand."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.in_hand = 0
        self._closed = False
        self._free: SimpleQueue[Point] = SimpleQueue()
        self.reopen()

    def enter(self) -> bool:
        """Wait for a place, and for the device to be done with what was there; False if the pass was closed."""
        self._free.get().wait()
        return not self._closed

    def leave(self, side: SideStream | NoStream) -> None:
        """The consumer comes for its next batch, so it has let go of the one before the last."""
        if self.in_hand == IN_HAND:
            self.in_hand -= 1
            self._free.put(side.consumed())

    def close(self) -> None:
        self._closed = True
        self._free.put(Passed())  # wakes a thread that waits for a place

    def reopen(self) -> None:
        """Make the places of batches that never came to the consumer free again."""
        points = _drain(self._free)[: self.capacity - self.in_hand]
        for point in points + [Passed()] * (self.capacity - self.in_hand - len(points)):
            self._free.put(point)
        self._closed = False


@dataclass
class _Arrival:
    """A batch that has been given to the device, and the point from which it is whole."""

    sent: Sent
    ready: Any
    remark: str | None


@dataclass
class _End:
    """Nothing comes after this; ``error`` is why, unless the loader had simply come to its end."""

    error: BaseException | None = None


class _Preparation:
    """What happens to each batch of one pass on the side stream: copy, then transform the images."""

    def __init__(self, side: SideStream | NoStream, transform: Callable[..., torch.Tensor] | None, key: Key) -> None:
        self.side = side
        self._transform = transform
        self._normalize = _normalize_of(transform)
        self._key = key

    def __call__(self, batch: Any) -> _Arrival:
        images = self._images(batch)
        remark = self._remark(images)
        sent = send(batch, self.side.device)
        copied = self.side.prepared()
        if images:
            sent.replace(self._transformed({path: sent.tensors[path] for path in images}))
        arrival = _Arrival(sent, self.side.prepared(), remark)
        copied.wait()  # the loader may write to its tensors again as soon as it is asked for the next batch
        return arrival

    def _images(self, batch: Any) -> dict[Path, torch.Tensor]:
        if self._transform is None:
            return {}
        found = tensors(batch)
        if getattr(self._transform, "moves_pixels", False):
            refuse_targets(found)
        return find_images(found)

    def _transformed(self, images: dict[Path, torch.Tensor]) -> dict[Path, torch.Tensor]:
        single = 0
        batched = 0
        results = {}
        for path, image in images.items():
            if image.ndim < BATCHED_DIMS:
                key, single = self._key.advanced(single), single + 1
            else:
                key, batched = self._key, len(image)
            results[path] = self._transform(image, key) if isinstance(self._transform, Transform) else self._transform(image)
        self._key = self._key.advanced(max(single, batched))
        return results

    def _remark(self, images: dict[Path, torch.Tensor]) -> str | None:
        """Look once at what is normalised, while it is still on the host."""
        normalize, self._normalize = self._normalize, None
        image = next(iter(images.values()), None)
        if normalize is None or image is None or image.device.type != "cpu":
            return None
        return remark_on_range(image, normalize.full_scale)


def _plan(
    transform: Callable[..., torch.Tensor] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
) -> Callable[..., torch.Tensor] | None:
    """One transform of all that was asked for."""
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be callable on a batch of images; got {transform!r}")
    if (mean is None) != (std is None):
        raise ValueError(f"mean and std go together; got mean={mean}, std={std}")
    if mean is None or std is None:
        if dtype is not None or memory_format is not None:
            raise ValueError(
                f"dtype and memory_format are those of normalised images; got dtype={dtype}, memory_format={memory_format} and "
                "no mean and std: give mean=[0, 0, 0], std=[1, 1, 1] to scale images to 0 to 1"
            )
        return transform
    normalize = Normalize(
        mean, std, dtype=dtype or torch.float32, memory_format=memory_format or torch.contiguous_format
    )
    return normalize if transform is None else Compose([transform, normalize])


def _normalize_of(transform: Callable[..., torch.Tensor] | None) -> Normalize | None:
    transforms = transform.transforms if isinstance(transform, Compose) else [transform]
    return next((each for each in transforms if isinstance(each, Normalize)), None)


def _resolve(device: torch.device | str | int | None) -> torch.device:
    """The device with its index, as its tensors will name it."""
    here = torch.accelerator.current_accelerator(check_available=True)
    wanted = torch.device(device) if device is not None else here or torch.device("cpu")
    if wanted.type == "cpu":
        return torch.device("cpu")
    if here is None or wanted.type != here.type:
        raise ValueError(f"device must be one that this machine has: cpu{f' or {here.type}' if here else ''}; got {device!r}")
    if wanted.index is None:
        return torch.device(wanted.type, torch.accelerator.current_device_index())
    return wanted


def _drain(queue: SimpleQueue[Any]) -> list[Any]:
    items = []
    with contextlib.suppress(Empty):
        while True:
            items.append(queue.get_nowait())
    return items
