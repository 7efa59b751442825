"""``TrainStep.profile_memory``: the bytes of each stage, and that nothing is left of the two steps."""

import copy
import json

import pytest
import torch
from torch import nn

import fastload as fl
from tests.handwritten import SmallNet, adamw, assert_same_weights, halving, make_batches, scaled_step, sgd

on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])

STAGES = ["data", "forward", "loss", "backward", "step"]
WIDE, BATCH, FLOAT = 512, 256, 4
WEIGHTS = FLOAT * 2 * (WIDE + 1) * WIDE
ACTIVATION = FLOAT * BATCH * WIDE
WASTE = 2**20  # floats
SCALARS = 64  # bytes of losses, counts and flags


pytestmark = pytest.mark.usefixtures("repeatable")


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE))


def batch_of(device="cpu"):
    return torch.randn(BATCH, WIDE, device=device), torch.arange(BATCH, device=device)


def allocated(readings):
    return [readings[stage].allocated for stage in STAGES]


def assert_bytes(found, expected, slack=SCALARS):
    for stage, one, other in zip(STAGES, found, expected, strict=True):
        assert 0 <= one - other <= slack, (stage, one, other)


def test_the_stages_hold_what_can_be_reckoned_by_hand():
    step = fl.TrainStep(model := Mlp(), sgd(model), nn.functional.cross_entropy, precision="fp32")
    memory = step.profile_memory(batch_of())

    data = WEIGHTS + ACTIVATION + 8 * BATCH
    forward = data + 2 * ACTIVATION  # what Tanh and the second Linear keep is one tensor; the other is the output,
    loss = forward  # of which nothing is kept but its softmax
    momentum = WEIGHTS
    assert_bytes(allocated(memory.first), [data, forward, loss, data + WEIGHTS, data + momentum])
    assert_bytes(allocated(memory.second), [stage + momentum for stage in (data, forward, loss, data + WEIGHTS, data)])
    assert memory.peak == memory.second["backward"].peak > forward + momentum
    assert all(
        readings[stage].peak >= readings[stage].allocated
        for readings in (memory.first, memory.second)
        for stage in STAGES
    )
    assert memory.second["data"].peak == memory.second["data"].allocated  # no stage tells of the ones before it
    assert (memory.device, memory.counted) == ("cpu", "tensors")


def test_a_window_is_profiled_at_its_last_batch_which_has_the_gradients_of_the_others():
    steps = [fl.TrainStep(model := Mlp(), sgd(model), nn.CrossEntropyLoss(), accumulate=size) for size in (1, 2)]
    one, two = (allocated(step.profile_memory(batch_of()).second) for step in steps)
    assert_bytes(two, [one[0] + WEIGHTS, one[1] + WEIGHTS, one[2] + WEIGHTS, one[3], one[4]])


def test_the_peak_of_every_backward_pass_of_a_window_is_that_of_its_stage():
    step = fl.TrainStep(model := Mlp(), sgd(model), nn.CrossEntropyLoss(), precision="fp32", accumulate=2)
    memory = step.profile_memory(batch_of()).second
    assert memory["backward"].peak > memory["backward"].allocated + ACTIVATION
    assert memory["step"].peak <= memory["backward"].allocated + SCALARS  # the update allocates nothing


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_counts_what_is_counted_by_tensors_elsewhere():
    counted = {}
    for device in ("cpu", "cuda"):
        step = fl.TrainStep(
            model := Mlp().to(device), sgd(model, foreach=False), nn.CrossEntropyLoss(), precision="fp32"
        )
        memory = step.profile_memory(batch_of())
        counted[memory.counted] = [size - memory.second["data"].allocated for size in allocated(memory.second)]
    blocks = 100 * 512
    assert_bytes([each + blocks for each in counted["allocator"]], counted["tensors"], slack=2 * blocks)


@pytest.mark.gpu
def test_on_a_gpu_the_readings_are_those_of_the_handwritten_loop():
    model = Mlp().cuda()
    inputs, targets = batch_of("cuda")
    model(inputs).sum().backward()  # libraries allocate what they work in once
    model.zero_grad()
    memory = fl.TrainStep(model, sgd(model), nn.CrossEntropyLoss(), precision="fp32").profile_memory((inputs, targets))
    assert memory.device == torch.cuda.get_device_name()

    optimizer, expected = sgd(model), []
    for _ in range(2):
        expected.append([torch.cuda.memory_allocated()])
        output = model(inputs)
        expected[-1].append(torch.cuda.memory_allocated())
        loss = nn.functional.cross_entropy(output, targets)
        del output
        expected[-1].append(torch.cuda.memory_allocated())
        loss.backward()
        expected[-1].append(torch.cuda.memory_allocated())
        optimizer.step()
        optimizer.zero_grad()
        expected[-1].append(torch.cuda.memory_allocated())
        del loss
    for found, handwritten in zip((memory.first, memory.second), expected, strict=True):
        start = found["data"].allocated
        assert_bytes(
            [size - start + 100 * 512 for size in allocated(found)],
            [size - handwritten[0] for size in handwritten],
            slack=200 * 512,
        )


class Dropping(SmallNet):
    def __init__(self):
        super().__init__()
        self.append(nn.Dropout(0.2))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, images):
        self.calls += 1
        return super().forward(images)


class Counting(torch.optim.SGD):
    """Keeps a Python number in its state, as optimizers of other packages do."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["steps"] = self.state[parameter].get("steps", 0) + 1


def counting(model):
    return Counting(model.parameters(), lr=0.1)


def trained(device, make_optimizer, *, profiled, **settings):
    """Losses and all that is left of ten batches, with two profiles among them or not."""
    torch.manual_seed(1)
    model = Dropping().to(device)
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8, growth_interval=2)
    step = scaled_step(model, optimizer, scaler, scheduler=halving(optimizer), ema=0.9, **settings)
    batches, losses = make_batches(10, device), []
    for number, batch in enumerate(step.epoch(batches)):
        if profiled and number in (0, 4):
            step.profile_memory(tuple(part.cpu() for part in batches[7]))
        losses.append(step(*batch).loss)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step.state_dict()}
    return losses, copy.deepcopy(state), float(model.calls), torch.rand(3)


@on_devices
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw, counting])
def test_training_goes_on_as_if_there_had_been_no_profile(make_optimizer, accumulate, device):
    settings = {"accumulate": accumulate, "max_norm": 0.5, "on_nonfinite": "skip"}
    with_profile = trained(device, make_optimizer, profiled=True, **settings)
    without = trained(device, make_optimizer, profiled=False, **settings)
    torch.testing.assert_close(with_profile, without, rtol=0, atol=0)


@pytest.mark.usefixtures("late")
def test_training_goes_on_so_where_the_host_learns_of_updates_late():
    with_profile, without = (trained("cpu", adamw, profiled=profiled) for profiled in (True, False))
    torch.testing.assert_close(with_profile, without, rtol=0, atol=0)


def test_a_batch_that_fails_leaves_all_as_it_was():
    step = fl.TrainStep(model := SmallNet(), sgd(model), nn.CrossEntropyLoss())
    before = copy.deepcopy(model)
    (images, labels), *_ = make_batches(1)
    with pytest.raises(FloatingPointError, match="the loss of update 1 is not finite"):
        step.profile_memory((images * torch.inf, labels))
    with pytest.raises(IndexError):
        step.profile_memory((images, labels + 5))
    assert_same_weights(model, before)
    assert step.updates == 0
    assert step(images, labels).loss.isfinite()


class Assigning(SmallNet):
    """Assigns its buffers instead of writing to them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(5))
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("last", None)
        self.register_buffer("forwards", torch.zeros(()), persistent=False)
        self.register_buffer("table", torch.ones(2), persistent=False)

    def forward(self, images):
        output = super().forward(images)
        self.centre = self.centre * 0.9 + output.detach().mean(0) * 0.1
        self.seen = torch.cat([self.seen, output.detach().mean(1)])
        self.last = output.detach()
        self.forwards = self.forwards + 1
        return output


def test_buffers_that_the_model_assigns_are_restored():
    model = Assigning()
    step = fl.TrainStep(model, sgd(model), nn.CrossEntropyLoss(), ema=0.9)
    first, second = make_batches(2)
    step(*first)
    before, averages = copy.deepcopy(model.state_dict()), copy.deepcopy(step.ema.state_dict())
    step.profile_memory(second)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(step.ema.state_dict(), averages, rtol=0, atol=0)
    assert model.forwards == 1


def test_a_buffer_that_was_none_is_none_again():
    step = fl.TrainStep(model := Assigning(), sgd(model), nn.CrossEntropyLoss())
    step.profile_memory(make_batches(1)[0])
    assert model.last is None


def test_a_table_that_has_grown_is_left_to_the_model_which_may_count_on_its_length():
    class Remembering(Assigning):
        length = 2

        def forward(self, images):
            if self.length < len(images):
                self.length, self.table = len(images), torch.ones(len(images))
            return super().forward(images) * self.table[: len(images), None]

    step = fl.TrainStep(model := Remembering(), sgd(model), nn.CrossEntropyLoss())
    batch, *_ = make_batches(1)
    step.profile_memory(batch)
    assert step(*batch).loss.isfinite()


def test_a_window_that_has_begun_is_refused():
    step = fl.TrainStep(model := SmallNet(), sgd(model), nn.CrossEntropyLoss(), accumulate=2)
    batch, *_ = make_batches(1)
    step(*batch)
    with pytest.raises(RuntimeError, match=r"this one has begun: call step.flush\(\) first"):
        step.profile_memory(batch)


def test_models_that_return_their_loss_and_several_models_have_all_stages():
    class WithLoss(SmallNet):
        def forward(self, images, labels):
            return {"classifier": nn.functional.cross_entropy(super().forward(images), labels)}

    def losses(encoder, decoder, images, labels):
        return nn.functional.cross_entropy(decoder(encoder(images)), labels)

    def parts(encoder, decoder, images, labels):
        return nn.functional.cross_entropy(decoder[0](encoder[1](encoder[0](images))), labels)

    class Wasteful(nn.Module):
        def forward(self, inputs):
            return inputs + torch.zeros(WASTE).sum()

    pair = [nn.Sequential(nn.Flatten(), nn.Linear(192, 8), Wasteful()), nn.Sequential(nn.Linear(8, 5))]
    optimizer = torch.optim.SGD([*pair[0].parameters(), *pair[1].parameters()], lr=0.1)
    batch, *_ = make_batches(1)
    with_loss = fl.TrainStep(model := WithLoss(), sgd(model)).profile_memory(batch)
    several = fl.TrainStep(pair, optimizer, losses).profile_memory(batch)
    for memory in (with_loss, several):
        assert list(memory.first) == list(memory.second) == STAGES
        assert memory.first["forward"].allocated > memory.first["data"].allocated
    assert several.first["forward"].peak > WASTE * FLOAT > several.first["loss"].peak
    memory = fl.TrainStep(pair, optimizer, parts).profile_memory(batch)  # calls no model, but parts of them
    assert memory.first["forward"] == memory.first["loss"]


def test_it_prints_a_table_in_mib_and_json_in_bytes():
    step = fl.TrainStep(model := Mlp(), sgd(model), nn.functional.cross_entropy, precision="fp32")
    memory = step.profile_memory(batch_of())
    lines = str(memory).splitlines()
    assert f"MiB on cpu; peak {memory.peak / 2**20:.1f}; counted: tensors" in lines[0]
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    assert [row[0].strip() for row in rows] == STAGES
    readings = memory.first["forward"], memory.second["forward"]
    sizes = [size for reading in readings for size in (reading.allocated, reading.peak)]
    assert [cell.strip() for cell in rows[1][1:]] == [f"{size / 2**20:.1f}" for size in sizes]

    told = json.loads(memory.to_json())
    assert told["peak"] == memory.peak
    assert told["first"]["loss"] == {"allocated": memory.first["loss"].allocated, "peak": memory.first["loss"].peak}
    assert list(told["second"]) == STAGES
