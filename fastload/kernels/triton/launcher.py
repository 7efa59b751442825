"""``Launcher``: launches a kernel that Triton has compiled for such arguments before.

At each launch Triton binds and specialises all arguments, and compares all constants in a kernel's modules with those
that it was compiled with: 50 of ``resample``'s, in 32 µs of Python on one host. A launcher remembers what Triton has
compiled, and hands it the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from triton.compiler import CompiledKernel

from fastload.kernels.triton.device import is_nvidia

__all__ = ["MOST_KINDS", "Constants", "Launcher"]

ALIGNMENT = 16  # bytes: Triton compiles other code for pointers to multiples of it
MOST_KINDS = 256  # remembered of a kernel; sizes that differ each time should not add up
Grid = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Constants:
    """The constants that a kernel is compiled for, and Triton's options, by name.

    Keep it for the next launch: it equals itself alone, which takes less time to see than to compare all values.
    """

    values: Mapping[str, Any]


class Launcher:
    """Launches one kernel, as ``kernel[grid](**arguments, **constants.values)`` does, on the current device.

    What Triton may compile for has a compiled kernel each: constants, tensors' dtypes and alignment, values of
    integers, and which arguments are None.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._in_order = itemgetter(*kernel.arg_names)
        self._known: dict[tuple[object, ...], CompiledKernel] = {}

    def __call__(self, device: torch.device, grid: Grid, arguments: dict[str, Any], constants: Constants) -> None:
        if not is_nvidia(device):  # elsewhere Triton may compile for more, such as the sizes of tensors
            self._kernel[grid](**arguments, **constants.values)
            return
        kinds = torch.cuda.current_device(), constants, *map(_kind, arguments.values())
        compiled = self._known.get(kinds)
        if compiled is not None:
            compiled[grid](*self._in_order({**arguments, **constants.values}))
            return
        compiled = self._kernel[grid](**arguments, **constants.values)
        if isinstance(compiled, CompiledKernel):  # not one that is being compiled, and Triton's interpreter has none
            if len(self._known) >= MOST_KINDS:
                self._known.clear()
            self._known[kinds] = compiled


def _kind(argument: Any) -> object:
    """What Triton may compile for: equal for arguments that one compiled kernel takes."""
    if isinstance(argument, float):
        return float
    if isinstance(argument, tuple):
        return tuple(map(_kind, argument))
    if argument is not None and isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % ALIGNMENT == 0
    return argument
