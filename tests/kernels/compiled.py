"""Compile a kernel's variants for a GPU that is not here: Triton's interpreter takes more than its compiler does.

python -m tests.kernels.compiled resample
"""

import sys

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from fastload.kernels.spec import ColourProgram, Epilogue, Erase, Op
from fastload.kernels.triton.colour import _batch_kernel, _ragged_kernel
from fastload.kernels.triton.normalize import _groups_kernel, _pixels_kernel
from fastload.kernels.triton.resample import resample as launch_resample
from fastload.structure.ragged import Ragged
from tests.counts import variants

HOPPER = GPUTarget("cuda", 90, 32)
YES_AND_NO = (False, True)


def compile_source(kernel, types, constants):
    constants = constants | {name: None for name, kind in types.items() if kind is None}
    types = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    triton.compile(ASTSource(kernel, types, constexprs=constants), target=HOPPER)


def normalize():
    def options(channels, last_out, flips):
        numbers = ("fp32",) * channels
        types = {"scale": numbers, "bias": numbers, "flip": "*i1" if flips else None}
        return types, {"C": channels, "LAST_OUT": last_out, "BLOCK": 128, "FLIP": flips}

    for each in variants((1, 3, 4), YES_AND_NO, YES_AND_NO):
        types, constants = options(*each)
        compile_source(_pixels_kernel, types | {"images": "*u8", "out": "*bf16"}, constants)
    words = ((4, "*i32", tl.bfloat16), (2, "*u16", tl.float32))
    for *each, last_in, (pixels, word, dtype) in variants((1, 3, 4), YES_AND_NO, YES_AND_NO, YES_AND_NO, words):
        types, constants = options(*each)
        constants |= {"P": pixels, "DTYPE": dtype, "LAST_IN": last_in}
        compile_source(_groups_kernel, types | {"images": word, "out": "*i64"}, constants)


def colour():
    def options(channels, asked, *part):
        numbers, coloured = ("fp32",) * channels, asked and channels != 4
        return {
            "program": ("*fp32", "i32", *part) if coloured else None,
            "previous": "*i64" if coloured else None,
            "affine": (numbers, numbers) if asked else None,
            "erase": ("*i32", numbers, numbers) if asked else None,
            "seeds": "*i64" if asked else None,
            "statistics": "*i64" if coloured else None,
        }

    planar = [(8, tl.bfloat16, False, "*bf16"), (4, tl.bfloat16, False, "*bf16"), (8, tl.bfloat16, True, "*bf16")]
    of_three = [(4, tl.float32, True, "*fp32"), (4, tl.uint8, True, "*u8"), (1, tl.float16, True, "*fp16")]
    stores = variants((1, 3, 4), YES_AND_NO, planar, ways=1) + variants((3,), YES_AND_NO, of_three, ways=1)
    for channels, asked, (pixels, dtype, last, out) in stores:
        mix = ("*i32", "*i32", "*fp32", "*fp32") if asked else None
        constants = {"C": channels, "P": pixels, "DTYPE": dtype, "LAST_OUT": last}
        constants |= {"RANGES": True, "COUNT": 64, "OVERLAPS": True, "NVIDIA": True}
        types = options(channels, asked, "i32") | {"mix": mix, "images": "*u8", "out": out}
        compile_source(_batch_kernel, types, constants)
    for channels, asked in variants((1, 3, 4), YES_AND_NO, ways=1):
        constants = {"C": channels, "RANGES": True, "BLOCK": 512, "DTYPE_IN": tl.uint8, "DTYPE": tl.float16}
        constants |= {"LAST_OUT": True, "OVERLAPS": True}
        compile_source(_ragged_kernel, options(channels, asked) | {"images": "*i64", "outs": "*i64"}, constants)


def resample():
    chosen_here = {}  # constants that follow from the scale of the images

    class Hopper:
        def get_current_target(self):
            return HOPPER

        def get_current_device(self):
            return 0

        def get_current_stream(self, _):
            return 0

    def compiled(self, *args, warmup, **options):  # noqa: ARG001
        chosen = chosen_here | {"maxnreg": 128} if "HALF" in options else {}
        chosen |= {"NVIDIA": True, "OVERLAPS": True, "launch_pdl": True}
        chosen["PAIRS"] = options["TARGET"].primitive_bitwidth == 16 and not options["TARGET_PLANAR"]
        assert run(self, *args, warmup=True, **(options | chosen)).asm["cubin"]

    driver.set_active(Hopper())
    run, JITFunction.run = JITFunction.run, compiled
    image = torch.zeros(3, 40, 48, dtype=torch.uint8)
    packed = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    layouts = image, packed, torch.zeros(3, 40, 96, dtype=torch.uint8)[..., ::2]
    inside, outside = ([0, 0, 40, 48, 32, 32, 0, 0, 0, 1], [-3, 0, 40, 48, 32, 32, 0, -2, 0, 1])
    formats = torch.contiguous_format, torch.channels_last
    targets = (torch.bfloat16, (32, 32)), (torch.float16, (32, 36)), (torch.bfloat16, (32, 31))
    interpolations = "bilinear", "bicubic", "nearest"

    def launch(layout, window, size=(32, 32), **options):
        launch_resample(Ragged.of([layout]), torch.tensor([window], dtype=torch.int32), size, **options)

    options = formats, targets, interpolations, YES_AND_NO, (1, 2), YES_AND_NO
    cases = variants(layouts, (inside, outside), *options, ways=1)
    for layout, window, memory_format, (dtype, size), interpolation, half, tiles, clip in cases:
        chosen_here |= {"HALF": half, "TILES": tiles}
        epilogue = Epilogue(dtype=dtype, memory_format=memory_format, scale=(1.0,) * 3, bias=(0.0,) * 3)
        launch(layout, window, size, epilogue=epilogue, interpolation=interpolation, clip=clip)
    for dtype, interpolation in zip((torch.float16, torch.float32), ("bicubic", "nearest"), strict=True):
        launch(image.to(dtype), inside, interpolation=interpolation, clip=interpolation == "bicubic")
    erase = Erase(torch.tensor([[1, 1, 4, 4]], dtype=torch.int32), torch.tensor([7]), (1.0,) * 3, (0.0,) * 3)
    program = ColourProgram(torch.tensor([[[Op.INVERT, 0.0], [Op.CONTRAST, 0.5]]]))
    launch(image, inside, epilogue=Epilogue(dtype=torch.float16, erase=erase, program=program))


if __name__ == "__main__":
    {"normalize": normalize, "colour": colour, "resample": resample}[sys.argv[1]]()
    print("compiled")
