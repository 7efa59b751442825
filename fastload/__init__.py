"""One line around the PyTorch ``DataLoader`` you already have: batches on the GPU before they are asked for.

>>> import fastload as fl
>>> loader = fl.PrefetchLoader(loader, mean, std)  # doctest: +SKIP
>>> step = fl.TrainStep(model, optimizer, loss_fn, precision="bf16")  # doctest: +SKIP
>>> for images, labels in loader:  # doctest: +SKIP
...     out = step(images, labels)
"""

from fastload import data, kernels, transforms
from fastload.data.collate import collate
from fastload.loader import PrefetchLoader
from fastload.offload.offload import offload
from fastload.offload.split import Split, split
from fastload.prefetch.static import Static
from fastload.report.every import report_every
from fastload.report.report import Report
from fastload.report.watch import watch
from fastload.stats.stats import Stats
from fastload.training.evaluation import evaluate
from fastload.training.memory import StageMemory
from fastload.training.step import StepOutput, TrainStep

__all__ = [
    "PrefetchLoader",
    "Report",
    "Split",
    "StageMemory",
    "Static",
    "Stats",
    "StepOutput",
    "TrainStep",
    "collate",
    "data",
    "evaluate",
    "kernels",
    "offload",
    "report_every",
    "split",
    "transforms",
    "watch",
]

__version__ = "0.2.0"
