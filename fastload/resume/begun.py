"""``is_begun_elsewhere``: whether another loader has begun an epoch of a data set that draws the same numbers."""

from __future__ import annotations

import weakref
from collections.abc import Hashable

__all__ = ["is_begun_elsewhere"]

_begun: dict[int, dict[Hashable, object]] = {}  # by the identity of the data set: who began an epoch last


def is_begun_elsewhere(data: object, epoch: Hashable, owner: object) -> bool:
    """Note that ``owner`` begins ``epoch`` of ``data``; whether the last to do so was another.

    >>> data, first, second = {0}, object(), object()
    >>> [is_begun_elsewhere(data, epoch, owner) for owner in (first, second) for epoch in (3, 3)]
    [False, False, True, False]

    Of data that has no weak references, such as a list, nothing is noted.
    """
    if id(data) not in _begun:
        try:
            weakref.finalize(data, _begun.pop, id(data), None).atexit = False
        except TypeError:
            return False
    last = _begun.setdefault(id(data), {}).get(epoch, owner)
    _begun[id(data)][epoch] = owner
    return last is not owner
