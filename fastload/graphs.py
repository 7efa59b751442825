"""CUDA graphs return memory of their own, which the next replay writes over: what is to last is copied out of it.

``torch.compile(mode="reduce-overhead")`` replays graphs, and so does ``torch.cuda.make_graphed_callables``. In both
a parameter's first gradient is such memory itself, so that a loop that accumulates adds to what the next batch has
written over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Graphs"]

_TREES = "torch._inductor.cudagraph_trees"  # of torch.compile; loaded when it first makes a graph


class Graphs:
    """The CUDA graphs that may be replayed by these modules, or by what was compiled for their device."""

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        # make_graphed_callables gives a module a forward of its own; whoever else does, pays for copies.
        self._graphed = any("forward" in vars(part) for module in modules for part in module.modules())
        self._device = device
        self._copies: dict[Tensor, Tensor] = {}

    @property
    def replayed(self) -> bool:
        """Whether a tensor may lie in memory of a graph."""
        trees = sys.modules.get(_TREES) if self._device.type == "cuda" else None
        return self._graphed or (trees is not None and trees.get_manager(self._device.index, False) is not None)

    def keep(self, parameters: Iterable[Tensor]) -> None:
        """Let the gradients last until ``forget``, whatever is added to them meanwhile."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and gradient is not self._copies.get(parameter):
                parameter.grad = self._copies[parameter] = gradient.clone()

    def forget(self) -> None:
        """Let go of the gradients."""
        self._copies = {}
