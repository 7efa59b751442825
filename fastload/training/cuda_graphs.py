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

_OF_COMPILE = "torch._inductor.cudagraph_trees"  # loaded when torch.compile first makes a graph


class Graphs:
    """The CUDA graphs that may be replayed by these modules, or by whatever was compiled in this process."""

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self._graphed = any(_is_graphed(part) for module in modules for part in module.modules())
        self._on_gpu = device.type == "cuda"
        self._copies: dict[Tensor, Tensor] = {}

    @property
    def replayed(self) -> bool:
        """Whether a tensor may lie in memory of a graph."""
        return self._graphed or (self._on_gpu and _OF_COMPILE in sys.modules)

    def keep(self, parameters: Iterable[Tensor]) -> None:
        """Let the gradients last until ``forget``, whatever is added to them meanwhile."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and gradient is not self._copies.get(parameter):
                parameter.grad = self._copies[parameter] = gradient.clone()

    def forget(self) -> None:
        """Let go of the gradients."""
        self._copies = {}


def _is_graphed(module: nn.Module) -> bool:
    # make_graphed_callables gives a module a forward of its own. So does torch.compile, by a wrapper around it, and
    # whoever else does pays for copies.
    return "forward" in vars(module) and "_orig_mod" not in dict(module.named_children())
