"""The own state of a wrapped loader is left as it was loaded, until the first batch."""

from __future__ import annotations

from typing import Any

import torch

from fastload import PrefetchLoader


class LazyLoader:
    """As LitData's: it begins at a loaded state with the first batch, and its state before is not that."""

    def __init__(self) -> None:
        self.at = 0
        self.loaded: dict[str, Any] | None = None

    def __iter__(self):
        self.at = 0 if self.loaded is None else self.loaded["at"]
        self.loaded = None
        while self.at < 4:
            self.at += 1
            yield torch.tensor(self.at)

    def state_dict(self) -> dict[str, Any]:
        if self.loaded is not None:
            self.loaded["at"] = self.at
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


def test_a_loader_that_begins_with_its_first_batch_goes_on_at_the_loaded_state():
    with PrefetchLoader(LazyLoader(), device="cpu") as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        state = loader.state_dict()
    resumed = PrefetchLoader(LazyLoader(), device="cpu")
    resumed.load_state_dict(state)
    assert [int(batch) for batch in resumed] == [3, 4]
