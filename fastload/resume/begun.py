"""``is_begun_elsewhere``: whether another loader has begun the same epoch of a data set, with the same seed."""

from __future__ import annotations

import weakref

__all__ = ["is_begun_elsewhere"]

Epoch = tuple[int, int]

_begun: dict[int, dict[Epoch, object]] = {}  # by the identity of the data set: who began an epoch last


def is_begun_elsewhere(data: object, seed: int, epoch: int, owner: object) -> bool:
    """Note that ``owner`` begins an epoch of ``data``; whether the last to do so was another.

    >>> data, first, second = {0}, object(), object()
    >>> [is_begun_elsewhere(data, 0, epoch, owner) for owner in (first, second) for epoch in (3, 3)]
    [False, False, True, False]

    Of data that has no weak references, such as a list, nothing is noted.
    """
    if id(data) not in _begun:
        try:
            weakref.finalize(data, _begun.pop, id(data), None).atexit = False
        except TypeError:
            return False
    last = _begun.setdefault(id(data), {}).get((seed, epoch), owner)
    _begun[id(data)][seed, epoch] = owner
    return last is not owner
