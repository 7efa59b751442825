"""The step of ``views``: DINO's, whose teacher follows its student."""

import copy

import torch
from torch.nn import functional as F

from fastload.bench.subjects.dino import MOMENTUM, STUDENT_TEMPERATURE, TEACHER_TEMPERATURE, DinoStep, dino_loss
from tests.handwritten import TinyNet


def views_of(samples):
    return [torch.randn(samples, 3, 8, 8) for _ in range(4)], torch.zeros(samples)


def test_the_loss_is_the_mean_over_the_pairs_of_different_views():
    student = TinyNet().eval()
    teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)
    views, labels = views_of(6)
    taught = [F.softmax(student(view) / TEACHER_TEMPERATURE, -1) for view in views[:2]]
    learnt = [F.log_softmax(student(view) / STUDENT_TEMPERATURE, -1) for view in views]
    pairs = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)]
    expected = sum(-(taught[first] * learnt[second]).sum(-1).mean() for first, second in pairs) / len(pairs)
    torch.testing.assert_close(dino_loss(student, teacher, views, labels), expected)


def test_the_teacher_moves_towards_the_student_before_each_step():
    student, teacher = TinyNet(), TinyNet().requires_grad_(requires_grad=False)
    expected = [
        old.lerp(new, 1 - MOMENTUM) for old, new in zip(teacher.parameters(), student.parameters(), strict=True)
    ]
    dino_loss(student, teacher, *views_of(6))
    torch.testing.assert_close(list(teacher.parameters()), expected)


def test_a_step_trains_the_student_alone():
    step = DinoStep("squeezenet1_1", torch.device("cpu"))
    student, teacher = copy.deepcopy((step.student, step.teacher))
    views = [torch.randn(4, 3, side, side) for side in (48, 48, 32, 32)]
    assert step(views, torch.zeros(4)).isfinite()
    assert not all(map(torch.equal, step.student.parameters(), student.parameters()))
    # Both begin with the same weights, so there is nothing to follow yet.
    assert all(map(torch.equal, step.teacher.parameters(), teacher.parameters()))
