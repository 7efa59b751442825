"""``SeedWatch``: notices a data set that seeds random generators, or puts them back, around its transform."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["SeedWatch"]

FIRST_SEED = 0x5EED_0FFA_57A7_0000  # which nobody else chooses
WORDS = 624  # of a Mersenne Twister's state, which is replaced after as many draws
FURTHEST = 2000  # replacements, of 50 µs each, that a data set may use up for draws of its own


class SeedWatch:
    """Seeds the generators of PyTorch and Python, and sees later whether somebody else did so.

    NumPy's is not watched, since no transform that can move draws from it.

    >>> watch = SeedWatch()
    >>> _ = torch.rand(1000), random.random(), watch.look()
    >>> watch.was_seeded
    False
    >>> _ = random.seed(3), watch.look()
    >>> watch.was_seeded
    True

    Attributes:
        was_seeded: whether a generator was seeded, or got another state, before the last look.
    """

    def __init__(self) -> None:
        self.was_seeded = False
        self._seed = FIRST_SEED
        self._python = self._sow()

    def look(self) -> None:
        """Look at the generators, and seed them anew: a state that is put back later is another one than this."""
        self.was_seeded = self.was_seeded or not self._are_own()
        self._seed += 1
        self._python = self._sow()

    def _are_own(self) -> bool:
        return torch.default_generator.initial_seed() == self._seed and _comes_from(self._python, random.getstate())

    def _sow(self) -> Any:
        torch.default_generator.manual_seed(self._seed)  # torch.manual_seed would seed the devices, too
        random.seed(self._seed)
        return random.getstate()


def _comes_from(before: Any, after: Any) -> bool:
    """Whether drawing leads from one state of Python's generator to the other."""
    first, words = (np.array(state[1][:WORDS], dtype=np.uint32) for state in (before, after))
    ahead = np.random.RandomState()  # the same generator, a Mersenne Twister
    ahead.set_state(("MT19937", first, WORDS, 0, 0.0))
    for _ in range(FURTHEST):
        if np.array_equal(ahead.get_state(legacy=False)["state"]["key"], words):
            return True
        ahead.bytes(4 * WORDS)
    return False
