"""NVIDIA DALI's input stage for training from JPEG files, in the ways that its documentation shows.

``dali_crop`` decodes what is cropped alone, as in DALI's own training examples; ``dali`` decodes whole images. Both are
pipelines. ``dali_dynamic`` calls the operators of ``dali_crop`` one by one, and ``dali_capture`` lets DALI make a
pipeline of these calls.
"""

from __future__ import annotations

from pathlib import Path

import torch

from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.loaders import DTYPE

__all__ = ["SETTINGS", "dali", "dali_dynamic"]

# The share of the images that the JPEG engines decode; CUDA cores decode the rest. DALI's default, and its best here.
HARDWARE_SHARE = 0.65
QUEUE = 2  # batches ahead, DALI's default
HINT = {"preallocate_width_hint": 640, "preallocate_height_hint": 640}  # above the largest file: nothing is reallocated
NORMALIZATION = {"mean": [255 * value for value in MEAN], "std": [255 * value for value in STD], "output_layout": "HWC"}
BOX = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3], "num_attempts": 100}
SETTINGS = {"hw_decoder_load": HARDWARE_SHARE, "prefetch_queue_depth": QUEUE, "exec_dynamic": True, **HINT}


def dali(
    root: Path, batch: int, side: int, device: torch.device, *, threads: int, crops_in_decoder: bool = False
) -> Batches:
    """Return endless batches: decoded, cropped, resized, mirrored and normalised, all on the GPU or all on the CPU.

    DALI normalises to float16 in channels_last; its users convert to bfloat16 themselves.
    """
    from nvidia.dali import Pipeline, fn, types  # noqa: PLC0415  (a peer that may be missing)
    from nvidia.dali.plugin.pytorch import DALIGenericIterator  # noqa: PLC0415

    gpu = device.type == "cuda"
    decoding = _decoding(device, on_gpu="mixed")
    pipeline = Pipeline(
        batch_size=batch,
        num_threads=threads,
        device_id=torch.cuda.current_device() if gpu else None,
        prefetch_queue_depth=QUEUE,
        exec_dynamic=True,  # its outputs are handed to PyTorch without a copy
    )
    with pipeline:
        files, labels = fn.readers.file(file_root=str(root), random_shuffle=True)
        if crops_in_decoder:
            images = fn.decoders.image_random_crop(files, output_type=types.RGB, **BOX, **decoding)
            images = fn.resize(images, size=(side, side))
        else:
            images = fn.decoders.image(files, output_type=types.RGB, **decoding)
            images = fn.random_resized_crop(images, size=(side, side))
        images = fn.crop_mirror_normalize(
            images, mirror=fn.random.coin_flip(probability=0.5), dtype=types.FLOAT16, **NORMALIZATION
        )
        pipeline.set_outputs(images, labels.gpu() if gpu else labels)
    for outputs in DALIGenericIterator(pipeline, ["images", "labels"]):
        yield _as_trained_on(outputs[0]["images"], outputs[0]["labels"])


def dali_dynamic(root: Path, batch: int, side: int, device: torch.device, *, threads: int, capture: bool) -> Batches:
    """Return batches like those of :func:`dali` with ``crops_in_decoder``, in DALI's dynamic mode.

    With ``capture``, the loop's operators become a pipeline, which works ahead of the loop.
    """
    import nvidia.dali.experimental.dynamic as ndd  # noqa: PLC0415  (a peer that may be missing)

    ndd.set_num_threads(threads)
    reader = ndd.readers.File(file_root=str(root), random_shuffle=True, pad_last_batch=True)
    decoding = _decoding(device, on_gpu="gpu")
    while True:
        for files, labels in reader.next_epoch(batch_size=batch, capture=capture):
            images = ndd.decoders.image_random_crop(files, **BOX, **decoding)
            images = ndd.resize(images, size=[side, side])
            mirror = ndd.random.coin_flip(batch_size=batch, probability=0.5)
            images = ndd.crop_mirror_normalize(images, mirror=mirror, dtype=ndd.float16, **NORMALIZATION)
            yield _as_trained_on(images.torch(), labels.torch().to(device, non_blocking=True))


def _decoding(device: torch.device, on_gpu: str) -> dict[str, object]:
    if device.type != "cuda":
        return {"device": "cpu"}
    return {"device": on_gpu, "hw_decoder_load": HARDWARE_SHARE, **HINT}


def _as_trained_on(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return images.permute(0, 3, 1, 2).to(DTYPE), labels.flatten().long()
