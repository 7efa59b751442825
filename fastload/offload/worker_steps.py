"""``WorkerSteps``: what stays of a transform in the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["WorkerSteps"]


class WorkerSteps:
    """Calls steps one after another, with the image, or with image and targets, as torchvision's ``Compose`` does.

    >>> WorkerSteps([abs, float])(-3)
    3.0
    """

    def __init__(self, steps: Sequence[Callable[..., Any]]) -> None:
        self.steps = list(steps)

    def __repr__(self) -> str:
        return f"WorkerSteps({self.steps})"

    def __call__(self, *inputs: Any) -> Any:
        """What the last step returns."""
        for step in self.steps:
            outputs = step(*inputs)
            inputs = outputs if len(inputs) > 1 else (outputs,)
        return inputs if len(inputs) > 1 else inputs[0]
