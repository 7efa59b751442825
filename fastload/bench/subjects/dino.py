"""``DinoStep``: the training step of DINO that every subject of ``views`` feeds."""

from __future__ import annotations

import copy
from typing import cast

import torch
import torchvision
from torch import nn
from torch.nn import functional as F  # noqa: N812  (as PyTorch's users write it)

from fastload.bench.harness.window import Step
from fastload.bench.subjects.loaders import LAYOUT
from fastload.bench.subjects.training import CLASSES
from fastload.training.step import TrainStep

__all__ = ["DinoStep", "dino_loss"]

LARGE = 2  # views; the teacher sees only these
MOMENTUM = 0.996
STUDENT_TEMPERATURE, TEACHER_TEMPERATURE = 0.1, 0.04


class DinoStep:
    """The student sees all views and the teacher, its moving average, the large ones; forward in bf16, and SGD.

    The student learns the teacher's answer to another view. What is left out of the paper's step is the centre of the
    teacher's answers and its head of 65,536 outputs, which cost nothing beside the backbone.
    """

    def __init__(self, model: str, device: torch.device) -> None:
        torch.manual_seed(0)
        student = torchvision.models.get_model(model, num_classes=CLASSES).to(device, memory_format=LAYOUT).train()
        teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)
        self.optimizer = torch.optim.SGD(student.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.student, self.teacher = student, teacher
        if device.type == "cuda":
            self.student = cast(nn.Module, torch.compile(student, dynamic=False))
            self.teacher = cast(nn.Module, torch.compile(teacher, dynamic=False))

    def as_graphs(self) -> Step:
        """Return the same step as CUDA graphs."""
        step = TrainStep([self.student, self.teacher], self.optimizer, dino_loss, precision="bf16", graph=True)
        return lambda views, labels: step(views, labels).loss

    def __call__(self, views: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(labels.device.type, torch.bfloat16):
            loss = dino_loss(self.student, self.teacher, views, labels)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def dino_loss(
    student: nn.Module,
    teacher: nn.Module,
    views: list[torch.Tensor],
    labels: torch.Tensor,  # noqa: ARG001  (DINO has none)
) -> torch.Tensor:
    """Move the teacher towards the student, and return how far the student's answers are from the teacher's."""
    with torch.no_grad():
        torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - MOMENTUM)
    large, small = torch.cat(views[:LARGE]), torch.cat(views[LARGE:])
    with torch.no_grad():
        taught = F.softmax(teacher(large) / TEACHER_TEMPERATURE, dim=-1).chunk(LARGE)
    answers = torch.cat([student(large), student(small)]) / STUDENT_TEMPERATURE
    learnt = F.log_softmax(answers, dim=-1).chunk(len(views))
    losses = [
        -(target * answer).sum(-1).mean()
        for teacher_view, target in enumerate(taught)
        for student_view, answer in enumerate(learnt)
        if student_view != teacher_view
    ]
    return torch.stack(losses).mean()
