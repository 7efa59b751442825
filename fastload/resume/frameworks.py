"""``wrapping_line``: the line with which the training framework in use gets a ``PrefetchLoader`` around its loader."""

from __future__ import annotations

import sys

__all__ = ["wrapping_line"]

LINES = {
    "accelerate": "With Accelerate, wrap what it prepared: fl.PrefetchLoader(accelerator.prepare(dataloader), ...)",
    "ray": (
        "With Ray Train, let the adapter prepare it: "
        "fastload.integrations.ray.prepare_data_loader(fl.PrefetchLoader(dataloader, ...))"
    ),
    "lightning": (
        "With Lightning, give the Trainer a DataLoader, and the transform to its callback: "
        "callbacks=[fastload.integrations.lightning.Prefetch(train=transform)]"
    ),
}


def wrapping_line() -> str | None:
    """What to write in the framework that this process uses; None if it has loaded none.

    Accelerate and Ray are in use once they are initialised, Lightning once it is imported.
    """
    accelerate, ray = sys.modules.get("accelerate.state"), sys.modules.get("ray.train.torch")
    if accelerate is not None and accelerate.is_initialized():
        return LINES["accelerate"]
    if ray is not None and sys.modules["ray"].is_initialized():
        return LINES["ray"]
    if "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules:
        return LINES["lightning"]
    return None
