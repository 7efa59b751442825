"""``TrainingStep``: the step that every subject of ``resident``, ``jpeg`` and ``ddp`` feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torchvision
from torch import distributed, nn
from torch._inductor import config as inductor
from torch.nn.parallel import DistributedDataParallel

from fastload.bench.harness.window import Step
from fastload.bench.subjects.loaders import LAYOUT
from fastload.training.ranks import leave_statistics_unread
from fastload.training.step import TrainStep

__all__ = [
    "CLASSES",
    "VARIANTS",
    "TrainingStep",
    "compiled",
    "compiling",
    "cudnn_search",
    "describe",
    "replicated",
    "replicated_for_graphs",
]

CLASSES = 1000
VARIANTS = {
    "ordinary": "the model's kernels are launched from Python, as torch.compile has it",
    "cpp": "the same, but they are launched from C++: TORCHINDUCTOR_CPP_WRAPPER=1",
    "graph": "the whole step is replayed as CUDA graphs",
}


class TrainingStep:
    """Forward in bf16, backward, SGD: the same for every subject.

    ``wrap`` makes the model one of several ranks'. With ``from_cpp``, its kernels are launched from C++; take the first
    steps within :func:`compiling` then.
    """

    def __init__(
        self,
        model: str,
        device: torch.device,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
        *,
        from_cpp: bool = False,
    ) -> None:
        torch.manual_seed(0)
        built = torchvision.models.get_model(model, num_classes=CLASSES)
        self.model = built.to(device, memory_format=LAYOUT).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, fused=True)
        wrapped = self.model if wrap is None else wrap(self.model)
        self.from_cpp = from_cpp
        self.forward = compiled(wrapped, from_cpp=from_cpp) if device.type == "cuda" else wrapped

    def as_graphs(self) -> Step:
        """Return the same step as CUDA graphs, which are captured anew: those of other batches are dropped."""
        loss_fn = torch.nn.functional.cross_entropy
        step = TrainStep(self.forward, self.optimizer, loss_fn, precision="bf16", graph=True)
        return lambda images, labels: step(images, labels).loss

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.forward(images), labels)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def replicated(model: nn.Module) -> nn.Module:
    """Return the model as that of one of several ranks, each of which draws samples of its own from here on.

    Ranks keep running statistics of their own, as in Detectron2 and Ultralytics. To send them, 159 small tensors of
    ResNet-50, before each forward pass takes the host a quarter of its time (docs/notes/slow-hosts.md).
    """
    torch.manual_seed(distributed.get_rank())
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parallel.broadcast_buffers = False  # the argument's name depends on PyTorch's version
    leave_statistics_unread(parallel)
    return parallel


def replicated_for_graphs(model: nn.Module) -> nn.Module:
    """The same for a step that will be captured, made on a stream of its own, as PyTorch asks for.

    An ordinary step is not, since each gradient would have to wait for that stream.
    """
    torch.cuda.synchronize()  # the weights were written on another stream, and will be read there
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        parallel = replicated(model)
    torch.cuda.synchronize()
    return parallel


def compiled(model: nn.Module, *, from_cpp: bool) -> nn.Module:
    """Return the model compiled, so that its kernels are launched from C++, or from Python.

    The option keeps two models of the same kind apart, which would share what was compiled for the first.
    """
    return cast(nn.Module, torch.compile(model, options={"cpp_wrapper": from_cpp}))


@contextmanager
def compiling(*, from_cpp: bool) -> Iterator[None]:
    """Keep to the language in which a compiled model's first steps are taken: backward does not know the option."""
    with inductor.patch(cpp_wrapper=from_cpp):
        yield


def describe(device: torch.device) -> dict[str, object]:
    """Return what a result file's settings say of the step."""
    return {
        "compiled": device.type == "cuda",
        "precision": "bf16 autocast",
        "memory_format": str(LAYOUT),
        "optimizer": "SGD, fused, momentum 0.9",
    }


@contextmanager
def cudnn_search() -> Iterator[None]:
    """Let cuDNN search for the fastest algorithm of each convolution, as is advised where shapes are fixed."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
