"""Make the gallery of transforms for the site: each example's code, and what it makes of a photograph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from skimage.data import astronaut
from torchvision.io import write_jpeg

from fastload import transforms as T  # noqa: N812  (as users write it)

SIDE = 224  # pixels
ORIGINAL = torch.from_numpy(astronaut()).permute(2, 0, 1)
EXAMPLES = {
    "Geometry": [
        "T.Resize((224, 112))",
        "T.CenterCrop(224)",
        "T.RandomCrop(224)",
        "T.RandomCrop(512, padding=128)",
        "T.RandomResizedCrop(224)",
        "T.RandomResizedCrop(224, scale=(0.05, 0.1))",
        "T.RandomHorizontalFlip(p=1)",
        "T.RandomVerticalFlip(p=1)",
    ],
    "Colour": [
        "T.ColorJitter(brightness=(0.5, 0.5))",
        "T.ColorJitter(brightness=(1.5, 1.5))",
        "T.ColorJitter(contrast=(0.5, 0.5))",
        "T.ColorJitter(contrast=(2, 2))",
        "T.ColorJitter(saturation=(0, 0))",
        "T.ColorJitter(saturation=(3, 3))",
        "T.ColorJitter(hue=(-0.2, -0.2))",
        "T.ColorJitter(hue=(0.4, 0.4))",
        "T.Grayscale()",
        "T.RandomInvert(p=1)",
        "T.RandomPosterize(bits=3, p=1)",
        "T.RandomPosterize(bits=1, p=1)",
        "T.RandomSolarize(threshold=200, p=1)",
        "T.RandomSolarize(threshold=100, p=1)",
        "T.RandomAutocontrast(p=1)",
        "T.RandomEqualize(p=1)",
    ],
    "Filters": [
        "T.GaussianBlur(13, sigma=(1, 1))",
        "T.GaussianBlur(25, sigma=(4, 4))",
        "T.RandomAdjustSharpness(0, p=1)",
        "T.RandomAdjustSharpness(8, p=1)",
    ],
    "Policies": [
        "T.RandAugment(num_ops=2, magnitude=9)",
        "T.RandAugment(num_ops=3, magnitude=20)",
        "T.TrivialAugmentWide()",
        "T.ThreeAugment()",
    ],
    "Last": [
        "T.RandomErasing(p=1)",
        "T.RandomErasing(p=1, scale=(0.02, 0.02))",
    ],
}


def gallery(pages: Path) -> str:
    """Write the pictures under ``pages``, and return the page that shows them."""
    folder = pages / "pictures" / "gallery"
    folder.mkdir(parents=True)
    return "\n".join(
        ["# Gallery", "", "What a transform makes of a photograph, on the CPU as on a GPU.", *_lines(folder)]
    )


def _lines(folder: Path) -> Iterator[str]:
    for group, examples in EXAMPLES.items():
        yield from ("", f"## {group}", "", '<div class="gallery" markdown>')
        for example in examples:
            number = examples.index(example)
            name = f"{group.lower()}-{number}.jpg"
            write_jpeg(picture(example, seed=number), str(folder / name), quality=90)
            yield f"<figure markdown>![{example}](pictures/gallery/{name})<figcaption>`{example}`</figcaption></figure>"
        yield "</div>"


def picture(example: str, seed: int) -> torch.Tensor:
    """What a transform, written as users write it, makes of the photograph."""
    transform = eval(example, {"T": T})
    steps = [transform] if "Crop" in example or "Resize" in example else [T.Resize(SIDE), transform]
    changed = T.Compose(steps)(ORIGINAL[None], key=T.Key(seed=seed))[0]
    return changed if changed.dtype is torch.uint8 else (changed * 255).round().clamp(0, 255).byte()
