"""``DinoStep``: the training step of DINO that every subject of ``views`` feeds."""

from __future__ import annotations

import copy

import torch
import torchvision
from torch.nn import functional as F  # noqa: N812  (as PyTorch's users write it)

from fastload.bench.subjects.loaders import LAYOUT
from fastload.bench.subjects.training import CLASSES

__all__ = ["DinoStep"]

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
        self.student = torchvision.models.get_model(model, num_classes=CLASSES).to(device, memory_format=LAYOUT).train()
        self.teacher = copy.deepcopy(self.student).requires_grad_(requires_grad=False)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.01, momentum=0.9, fused=True)
        compiles = device.type == "cuda"
        self.learn = torch.compile(self.student, dynamic=False) if compiles else self.student
        self.teach = torch.compile(self.teacher, dynamic=False) if compiles else self.teacher

    def __call__(self, views: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        large, small = torch.cat(views[:LARGE]), torch.cat(views[LARGE:])
        with torch.autocast(large.device.type, torch.bfloat16):
            with torch.no_grad():
                taught = F.softmax(self.teach(large) / TEACHER_TEMPERATURE, dim=-1).chunk(LARGE)
            answers = torch.cat([self.learn(large), self.learn(small)]) / STUDENT_TEMPERATURE
            learnt = F.log_softmax(answers, dim=-1).chunk(len(views))
        losses = [
            -(target * answer).sum(-1).mean()
            for teacher, target in enumerate(taught)
            for student, answer in enumerate(learnt)
            if student != teacher
        ]
        loss = torch.stack(losses).mean()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.teacher.parameters()), list(self.student.parameters()), 1 - MOMENTUM)
        return loss.detach()
