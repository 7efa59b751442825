"""Transforms that run on the device, on whole batches.

>>> from fastload import transforms as T
>>> T.Compose([T.RandomHorizontalFlip(), T.Normalize(mean=[0.5] * 3, std=[0.25] * 3)])
Compose([RandomHorizontalFlip(p=0.5), Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])])
"""

from fastload.transforms.compose import Compose
from fastload.transforms.flip import RandomHorizontalFlip
from fastload.transforms.key import Key
from fastload.transforms.normalize import Normalize
from fastload.transforms.transform import Transform

__all__ = ["Compose", "Key", "Normalize", "RandomHorizontalFlip", "Transform"]
