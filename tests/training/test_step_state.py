"""A run that is killed and goes on from its saved state has the losses of one that was never killed, bit for bit."""

import copy
import functools
import os
import signal
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fastload as fl
from fastload.training import update_result as outcome
from fastload.training.step import TrainStep
from tests.handwritten import (
    LateReadout,
    TinyNet,
    adamw,
    make_batches,
    overflowing,
    scaled_step,
    sgd,
    weighted_cross_entropy,
)
from tests.lives import be_born, forked, save

EPOCHS, LENGTH = 3, 10  # in windows of 3, the last of each epoch of 1


def make_run(kind: str):
    """A model, its optimizer, the step, and the batches of an epoch."""
    torch.manual_seed(0)
    model = TinyNet()
    batches = overflowing(make_batches(LENGTH), at={1, 6} if kind.startswith("fp16") else ())
    optimizer = adamw(model, fused="fused" in kind) if "sgd" not in kind else sgd(model, fused="fused" in kind)
    settings = {
        "accumulate": 3,
        "max_norm": 0.5,
        "ema": 0.9,
        "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    }
    if kind.startswith("fp16"):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        step = scaled_step(model, optimizer, scaler, weighted_cross_entropy, **settings)
    else:
        step = TrainStep(model, optimizer, weighted_cross_entropy, precision="bf16", **settings)
    return model, optimizer, step, batches


def run(kind: str, path: Path | None = None, die_after: int | None = None) -> list[str]:
    """Train from the state at ``path`` on, if it is there, saving it after each batch; return losses and averages."""
    model, optimizer, step, batches = make_run(kind)
    seen, told = 0, []
    if path is not None and path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step.load_state_dict(saved["step"])
        seen = saved["seen"]
    while seen < EPOCHS * LENGTH:
        for batch in step.epoch(Rest(batches, seen % LENGTH)):
            told.append(step(*batch).loss.item().hex())
            seen += 1
            if path is not None:
                state = {"optimizer": optimizer.state_dict(), "step": step.state_dict(), "model": model.state_dict()}
                save(state | {"seen": seen}, path)
            if seen == die_after:
                os.kill(os.getpid(), signal.SIGKILL)
        told += [average.double().sum().item().hex() for average in step.ema.state_dict().values()]
        told += [f"{step.updates} updates at {optimizer.param_groups[0]['lr']}"]
    return told


class Rest:
    """A loader that has resumed in its epoch; its length is the whole epoch's, as a DataLoader's is."""

    def __init__(self, batches, start):
        self.batches, self.start = batches, start

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches[self.start :])


def live(kind: str, path: Path, die_after: int | None) -> None:
    be_born()
    outcome.AsyncReadback = LateReadout
    told = run(kind, path, die_after)
    path.with_suffix(".told").write_text("\n".join(told))


@pytest.mark.long
@pytest.mark.usefixtures("late", "one_thread")  # one thread, as in the processes that are killed
@pytest.mark.parametrize("kind", ["fp16", "fp16 fused", "bf16 fused", "fp16 sgd", "fp16 sgd fused"])
def test_killed_anywhere_and_resumed_the_losses_are_those_of_a_run_not_killed(kind, tmp_path):
    whole = run(kind)
    path = tmp_path / "state.pt"
    for die_after in (2, 7, 14, 17, 26):
        process = forked.Process(target=live, args=(kind, path, die_after))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    process = forked.Process(target=live, args=(kind, path, None))
    process.start()
    process.join()
    told = path.with_suffix(".told").read_text().split("\n")
    assert told == whole[-len(told) :]
    assert len(told) > EPOCHS * LENGTH - 26


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("saved_after", [2, 3])
def test_a_state_taken_before_a_bad_loss_is_told_tells_of_it(saved_after):
    _, _, step, batches = make_run("bf16")
    _, _, other, _ = make_run("bf16")
    batches = [
        (images, (labels, torch.nan if place == 1 else 1.0)) for place, (images, (labels, _)) in enumerate(batches)
    ]
    for batch in batches[:saved_after]:
        step(*batch)
    other.load_state_dict(step.state_dict())
    for batch in batches[saved_after:3]:
        other(*batch)
    with pytest.raises(FloatingPointError, match="update 1 is not finite: batch 2: loss nan"):
        other.flush()


@pytest.mark.parametrize(("then", "now"), [(1, 2), (2, 1), (2, 4), (2, 2)])
def test_the_last_window_is_known_to_another_number_of_ranks(then, now):
    """An epoch of 20 batches in updates of 8 ends with one of 4, whoever shares them."""

    def make(ranks):
        data = TensorDataset(torch.randn(80, 4), torch.randint(0, 2, (80,)))
        loader = fl.PrefetchLoader(DataLoader(data, 4, sampler=DistributedSampler(data, ranks, 0)), device="cpu")
        model = nn.Linear(4, 2)
        return loader, TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=8 // ranks)

    loader, step = make(then)
    for batch in step.epoch(loader):
        if step(*batch).stepped:
            break
    resumed_loader, resumed = make(now)
    resumed_loader.load_state_dict(loader.state_dict())
    resumed.load_state_dict(step.state_dict())
    stepped = [resumed(*batch).stepped for batch in resumed.epoch(resumed_loader)]
    ends = [place for place, is_end in enumerate(stepped, start=1) if is_end]
    assert (len(stepped), ends) == (12 // now, [8 // now, 12 // now])


def test_a_step_that_is_used_forgets_what_it_did_when_a_state_is_loaded():
    model, optimizer, step, batches = make_run("fp16")
    saved = model.state_dict(), optimizer.state_dict(), step.state_dict()
    saved = torch.utils._pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, saved)
    first = [step(*batch).loss for batch in batches[:6]]
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    step.load_state_dict(saved[2])
    assert torch.equal(torch.stack(first), torch.stack([step(*batch).loss for batch in batches[:6]]))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"ema": 0.9}, "saved without an EMA, but this step was made with"),
        ({"precision": "fp16", "scaler": torch.amp.GradScaler("cpu")}, "saved without an enabled scaler"),
    ],
)
def test_a_state_of_another_kind_of_step_is_refused(made, message):
    model = nn.Linear(4, 2)
    saved = TrainStep(model, sgd(model), nn.CrossEntropyLoss()).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), **made)
    with pytest.raises(ValueError, match=message):
        step.load_state_dict(saved)


def saved_in_mid_window():
    """A step of a kind that saves all there is to save, and its state."""
    model, _, step, batches = make_run("fp16")
    step(*batches[0], items=4)
    return model, step, step.state_dict()


def without(state, *path):
    *outer, last = path
    copied = copy.deepcopy(state)
    inner = functools.reduce(lambda part, key: part[key], outer, copied)
    del inner[last]
    return copied


def replaced(state, value, *path):
    *outer, last = path
    copied = copy.deepcopy(state)
    functools.reduce(lambda part, key: part[key], outer, copied)[last] = value
    return copied


PARTS = [(), ("window",), ("watch",), ("watch", "seen", 0), ("scaler",)]


def test_a_state_of_which_something_is_missing_or_forged_is_refused_and_changes_nothing():
    _, step, state = saved_in_mid_window()
    before = copy.deepcopy(state)
    refused = 0
    for path in PARTS:
        for key in functools.reduce(lambda part, each: part[each], path, state):
            with pytest.raises(ValueError, match=f"lacks '{key}'"):
                step.load_state_dict(without(state, *path, key))
            for forged in (object(), -1.5, "text", torch.zeros(7)):
                if isinstance(forged, (float, str)) and key in {"complaint", "items", *state["scaler"]}:
                    continue
                with pytest.raises((TypeError, ValueError), match="the state"):
                    step.load_state_dict(replaced(state, forged, *path, key))
                refused += 1
    assert refused > 50
    assert_equal_states(step.state_dict(), before)
    step.load_state_dict(state)


def assert_equal_states(state, expected):
    for one, other in zip(tree_leaves(state), tree_leaves(expected), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({}, ValueError, "lacks 'batches', 'windows', .* and has nothing"),
        (None, TypeError, "got a NoneType"),
        ([], TypeError, "got a list"),
    ],
)
def test_what_is_no_state_is_refused(state, error, message):
    model = nn.Linear(4, 2)
    with pytest.raises(error, match=f"what step.state_dict.. returned; .*{message}"):
        TrainStep(model, sgd(model), nn.CrossEntropyLoss()).load_state_dict(state)


def test_gradients_of_another_model_are_refused():
    _, step, state = saved_in_mid_window()
    with pytest.raises(ValueError, match=r"gradient 0 of the state .* shape \(8, 192\); got a tensor of shape \(3,\)"):
        step.load_state_dict(replaced(state, torch.zeros(3), "gradients", 0))
    with pytest.raises(ValueError, match="for each of 6 parameters; got 5"):
        step.load_state_dict(without(state, "gradients", 0))


def test_a_window_that_was_saved_can_be_flushed_at_once():
    model, step, state = saved_in_mid_window()
    _, _, other, _ = make_run("fp16")
    other.model.load_state_dict(model.state_dict())
    other.load_state_dict(state)
    step.flush()
    other.flush()
    torch.testing.assert_close(other.model.state_dict(), model.state_dict(), rtol=0, atol=0)
