"""``Graphs``: keeps losses and gradients that a CUDA graph's next replay would overwrite.

``torch.compile(mode="reduce-overhead")`` and ``torch.cuda.make_graphed_callables`` replay graphs, whose outputs lie in
memory that belongs to the graph. A parameter's first gradient is such memory too. So without a copy, the second batch
of an accumulation window would be added to a gradient that its own replay has just overwritten.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Graphs"]

_COMPILED_GRAPHS = "torch._inductor.cudagraph_trees"  # loaded when torch.compile makes its first graph


class Graphs:
    """The CUDA graphs that these modules, or compiled functions of this process, may replay."""

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self.has_graphed_module = any(_is_graphed(part) for module in modules for part in module.modules())
        self._on_gpu = device.type == "cuda"
        self._copies: dict[Tensor, Tensor] = {}

    @property
    def replayed(self) -> bool:
        """Whether a tensor may lie in a graph's memory."""
        return self.has_graphed_module or (self._on_gpu and _COMPILED_GRAPHS in sys.modules)

    def copy_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient that is not a copy yet by a copy, to which the next backward pass adds."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and gradient is not self._copies.get(parameter):
                parameter.grad = self._copies[parameter] = gradient.clone()

    def drop_gradients(self) -> None:
        """Drop the references to the copies, so that their memory is freed with the gradients."""
        self._copies = {}


def _is_graphed(module: nn.Module) -> bool:
    # make_graphed_callables gives a module its own `forward`; so does torch.compile, by a wrapper with `_orig_mod`.
    # Any other module with its own `forward` counts as graphed: copies that are not needed cost time, no correctness.
    return "forward" in vars(module) and "_orig_mod" not in dict(module.named_children())
