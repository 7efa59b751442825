"""What the tests of several guarantees share."""

import torch

from fastload import transforms as T

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF_A_MILLISECOND = 1_000_000  # in cycles of the GPU's clock, roughly


def one_batch():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # blocks of earlier tests would be cut up for this one's
    return torch.zeros(64, 3, 224, 224, dtype=torch.uint8).pin_memory(), torch.zeros(64).pin_memory()


def collect(loader):
    """The labels that arrive, and the error that ends them."""
    labels, error = [], None
    try:
        for _, numbers in loader:
            labels += numbers.tolist()
    except Exception as raised:  # noqa: BLE001  (it is what the test looks at)
        error = raised
    return labels, error


class Ramps(torch.utils.data.Dataset):
    """Sample ``i`` is an image of its own."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8, generator=generator), index


AUGMENT = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.Normalize(MEAN, STD)]
