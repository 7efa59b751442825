"""G12: The loop runs without synchronising with the device."""

import pytest
import torch

import fastload as fl
from fastload import transforms as T
from tests.batches import numbered_loader
from tests.guarantees.shared import MEAN, STD


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_g12_the_loop_runs_with_synchronisation_forbidden(workers):
    wrapped = numbered_loader(samples=64, num_workers=workers, pin_memory=bool(workers))
    flip_and_normalize = T.Compose([T.RandomHorizontalFlip(), T.Normalize(MEAN, STD, dtype=torch.bfloat16)])
    loader = fl.PrefetchLoader(wrapped, transform=flip_and_normalize)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train():
        for images, labels in loader:
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    train()  # kernels are compiled and loaded
    torch.cuda.set_sync_debug_mode("error")
    try:
        train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
