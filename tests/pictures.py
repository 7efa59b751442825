"""Image files for tests, made in memory."""

import io

import numpy as np
from PIL import Image, ImageOps


def picture(height=48, width=64, seed=0):
    """Smooth colours with some detail: what a photograph's JPEG is like."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(rng.uniform(2, 9) * x + rng.uniform(2, 9) * y + rng.uniform(0, 6)) for _ in range(3)]
    return Image.fromarray((127 + 100 * np.stack(waves, axis=-1)).astype(np.uint8))


def encoded(image=None, kind="JPEG", **options):
    buffer = io.BytesIO()
    (image or picture()).save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(data):
    """What a Pillow user gets, uint8 (3, H, W)."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB")).transpose(2, 0, 1)
