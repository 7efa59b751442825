"""The kernels compile for a GPU that is not here: Triton's interpreter takes more than its compiler does."""

import os
import subprocess
import sys

import pytest

COMPILE = """
import triton, triton.language as tl
from itertools import product
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fastload.kernels.triton.normalize import _groups_kernel, _pixels_kernel

def compile_for_hopper(kernel, types, constants):
    types = types | dict.fromkeys(constants, "constexpr")
    triton.compile(ASTSource(kernel, types, constexprs=constants), target=GPUTarget("cuda", 90, 32))

def types(kernel, pointers, channels, flips):
    names = [name for name in kernel.arg_names if name.islower()]
    known = pointers | {"flip": "*i1", "scale": ("fp32",) * channels, "bias": ("fp32",) * channels}
    return {name: known.get(name, "i32") for name in names if name != "flip" or flips}

for channels, last_out, flips in product((1, 3, 4), (False, True), (False, True)):
    shared = {"C": channels, "LAST_OUT": last_out, "FLIP": flips, "BLOCK": 128} | ({} if flips else {"flip": None})
    pointers = {"images": "*u8", "out": "*bf16"}
    compile_for_hopper(_pixels_kernel, types(_pixels_kernel, pointers, channels, flips), shared)
    for last_in, (pixels, word, dtype) in product((False, True), ((4, "*i32", tl.bfloat16), (2, "*u16", tl.float32))):
        constants = shared | {"P": pixels, "DTYPE": dtype, "LAST_IN": last_in}
        pointers = {"images": word, "out": "*i64"}
        compile_for_hopper(_groups_kernel, types(_groups_kernel, pointers, channels, flips), constants)
print("compiled")
"""


@pytest.mark.interpreter
def test_every_variant_compiles():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.strip() == "compiled", run.stderr
