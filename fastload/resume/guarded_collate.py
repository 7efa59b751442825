"""``GuardedCollate``: a loader's ``collate_fn`` for comparing and looking at, not for another loader to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["GuardedCollate"]


class GuardedCollate:
    """What ``PrefetchLoader.collate_fn`` is: equal to the wrapped loader's, with its attributes; calling it raises.

    >>> guarded = GuardedCollate(list)
    >>> guarded == list, guarded.__name__, hash(guarded) == hash(list)
    (True, 'list', True)
    >>> guarded([1, 2])
    Traceback (most recent call last):
    RuntimeError: a DataLoader was made from a PrefetchLoader's attributes, and would yield batches without its ...

    Frameworks make a new ``DataLoader`` from the attributes of one, to skip batches or to put in a sampler. Made from
    those of a ``PrefetchLoader`` it would yield batches as they were before the transform.
    """

    def __init__(self, collate_fn: Callable[..., Any]) -> None:
        self.wrapped = collate_fn

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            "a DataLoader was made from a PrefetchLoader's attributes, and would yield batches without its transform. "
            "Make it from the plain loader, loader.loader, and wrap it by loader.rewrapped. With Accelerate, use "
            "fastload.integrations.accelerate.skip_first_batches(loader, 2); with Ray Train, "
            "fastload.integrations.ray.prepare_data_loader(loader); in Lightning, the callback "
            "fastload.integrations.lightning.Prefetch. For batches without the transform, pass "
            "collate_fn=loader.loader.collate_fn"
        )

    def __eq__(self, other: object) -> bool:
        return bool(self.wrapped == (other.wrapped if isinstance(other, GuardedCollate) else other))

    def __hash__(self) -> int:
        return hash(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped" or (name.startswith("__") and name not in ("__name__", "__qualname__", "__wrapped__")):
            raise AttributeError(name)  # pickle and copy ask for special methods before there is a function
        return getattr(self.wrapped, name)
