"""Several transforms, in an order drawn for each image."""

from itertools import permutations

import torch

from fastload import transforms as T
from fastload.transforms import Key
from tests.transforms.draws import assert_share

MANY = 3000
STEPS = [T.RandomInvert(1.0), T.RandomSolarize(0.6, 1.0), T.ColorJitter(brightness=(0.4, 0.4))]
LEVELS = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])  # enough of them that each order gives others


def test_all_orders_are_as_likely():
    grey = LEVELS.expand(MANY, 3, 1, -1)
    made = T.RandomOrder(STEPS)(grey, Key(seed=3))[:, 0, 0]
    values = torch.stack([T.Compose(order)(grey[:1])[0, 0, 0] for order in permutations(STEPS)])
    distances = (made[:, None] - values).abs().amax(2)
    assert (values[:, None] - values).abs().amax(2).add(torch.eye(6)).min() > 0.01
    assert distances.min(1).values.max() < 1e-5
    for order in range(6):
        assert_share(distances.argmin(1) == order, 1 / 6)


def test_geometry_and_colours_mix():
    images = torch.randint(0, 256, (12, 3, 9, 9), dtype=torch.uint8)
    made = T.RandomOrder([T.RandomHorizontalFlip(1.0), T.CenterCrop(5), T.RandomInvert(1.0)])(images)
    assert torch.equal(made, 255 - images[:, :, 2:7, 2:7].flip(-1))
