"""Several models, optimizers and losses; gradient penalty; sparse gradients; no_grad inside autocast."""

import copy

import pytest
import torch
from torch import nn

from fastload.training.step import TrainStep
from tests.handwritten import OVERFLOW, adamw, assert_same_weights, halving, scaled_step, sgd

binary_cross_entropy = nn.functional.binary_cross_entropy_with_logits
ONES, ZEROS = torch.ones(8, 1), torch.zeros(8, 1)


def test_a_generator_and_its_discriminator_train_in_turn_as_by_hand():
    """The generator's loss reaches the discriminator's weights too: their gradients are not the discriminator's own."""
    generator, discriminator = models = [nn.Linear(2, 6), nn.Linear(6, 1)]
    own_generator, own_discriminator = references = copy.deepcopy(models)

    def of_discriminator(discriminator, generator, images, noise):
        made = discriminator(generator(noise).detach())
        return binary_cross_entropy(discriminator(images), ONES) + binary_cross_entropy(made, ZEROS)

    def of_generator(generator, discriminator, noise):
        return binary_cross_entropy(discriminator(generator(noise)), ONES)

    discriminate = TrainStep([discriminator, generator], adamw(discriminator), of_discriminator)
    generate = TrainStep([generator, discriminator], adamw(generator), of_generator)
    own = [adamw(own_generator), adamw(own_discriminator)]
    for _ in range(5):
        images, noise = torch.randn(8, 6), torch.randn(8, 2)
        discriminate(images, noise)
        generate(noise)

        own[1].zero_grad()
        of_discriminator(own_discriminator, own_generator, images, noise).backward()
        own[1].step()
        own[0].zero_grad()
        of_generator(own_generator, own_discriminator, noise).backward()
        own[0].step()
    for model, reference in zip(models, references, strict=True):
        assert_same_weights(model, reference)


@pytest.mark.parametrize("how", ["flush", "items"])
def test_the_gradient_of_a_parameter_that_two_optimizers_share_is_averaged_once(how):
    model, reference = models = [nn.Linear(6, 3) for _ in range(2)]
    reference.load_state_dict(model.state_dict())
    trained, by_hand = ([sgd(each), torch.optim.SGD([each.weight], 0.5)] for each in models)
    images, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
    nn.functional.cross_entropy(reference(images), labels).backward()
    for optimizer in by_hand:
        optimizer.step()
    step = TrainStep(model, trained, nn.functional.cross_entropy, accumulate=2 if how == "flush" else 1)
    if how == "flush":  # the first of two batches is averaged as the only one
        step(images, labels)
        step.flush()
    else:
        step(images, labels, items=8)
    assert_same_weights(model, reference)


def batches_of(number):
    return [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(number)]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("fused", [False, True])
def test_each_optimizer_skips_for_itself_and_the_scaler_is_updated_once(fused):
    """The first model overflows in the third batch, the second does not; the fifth is too much for both."""
    models = [nn.Linear(6, 3), nn.Linear(6, 3)]
    references = copy.deepcopy(models)
    weights = [(OVERFLOW if place in {2, 4} else 1.0, OVERFLOW if place == 4 else 1.0) for place in range(8)]
    batches = [(*batch, weight) for batch, weight in zip(batches_of(8), weights, strict=True)]

    def losses(first, second, inputs, labels, weight):
        return {
            "first": nn.functional.cross_entropy(first(inputs), labels) * weight[0],
            "second": nn.functional.cross_entropy(second(inputs), labels) * weight[1],
        }

    optimizers = [adamw(models[0], fused=fused), sgd(models[1], fused=fused)]
    schedulers = [halving(optimizer) for optimizer in optimizers]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    step = scaled_step(models, optimizers, scaler, losses, scheduler=schedulers, max_norm=1.0)
    skipped = [int(step(*batch).skipped) for batch in batches]
    step.flush()

    own = [adamw(references[0], fused=fused), sgd(references[1], fused=fused)]
    own_schedulers = [halving(optimizer) for optimizer in own]
    own_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    for batch, weight in zip(batches, weights, strict=True):
        own_scaler.scale(sum(losses(*references, *batch).values())).backward()
        for optimizer in own:
            own_scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
        for optimizer, scheduler, each in zip(own, own_schedulers, weight, strict=True):
            own_scaler.step(optimizer)
            if each == 1.0:
                scheduler.step()
        own_scaler.update()
        for optimizer in own:
            optimizer.zero_grad(set_to_none=True)
    assert skipped == [0, 0, 0, 0, 1, 0, 0, 0]
    assert step.updates == 7
    assert [scheduler.last_epoch for scheduler in schedulers] == [6, 7]
    assert scaler.state_dict() == own_scaler.state_dict()
    assert scaler.get_scale() == 2.0**18
    for model, reference in zip(models, references, strict=True):
        assert_same_weights(model, reference)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_penalty_trains_as_written_by_hand(scaled):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    reference = copy.deepcopy(model)
    batches = batches_of(10)

    def with_penalty(output, labels):
        loss = nn.functional.cross_entropy(output, labels)
        return loss + sum(gradient.square().sum() for gradient in step.grad(loss, list(model.parameters())))

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer, own = sgd(model), sgd(reference)
    step = scaled_step(model, optimizer, scaler, with_penalty) if scaled else TrainStep(model, optimizer, with_penalty)
    for inputs, labels in batches:
        step(inputs, labels)
        loss = nn.functional.cross_entropy(reference(inputs), labels)
        gradients = torch.autograd.grad(loss, list(reference.parameters()), create_graph=True)
        (loss + sum(gradient.square().sum() for gradient in gradients)).backward()
        own.step()
        own.zero_grad()
    assert_same_weights(model, reference)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_sparse_gradients_train_as_written_by_hand(accumulate, scaled):
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    reference = copy.deepcopy(model)
    batches = [(torch.randint(0, 10, (8, 2)), torch.randint(0, 3, (8,))) for _ in range(10)]

    def optimizers(net):
        return [torch.optim.SparseAdam(net[0].parameters(), lr=0.1), sgd(net[2])]

    loss_fn = nn.CrossEntropyLoss()
    if scaled:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        step = scaled_step(model, optimizers(model), scaler, loss_fn, accumulate=accumulate)
    else:
        step = TrainStep(model, optimizers(model), loss_fn, accumulate=accumulate, on_nonfinite="skip")
    own = optimizers(reference)
    for number, batch in enumerate(batches, start=1):
        step(*batch)
        (loss_fn(reference(batch[0]), batch[1]) / accumulate).backward()
        if number % accumulate == 0:
            for optimizer in own:
                optimizer.step()
                optimizer.zero_grad()
    assert_same_weights(model, reference)
    assert step.updates == 10 // accumulate


class SelfDistilled(nn.Module):
    """Its loss compares two forward passes, of which the first leaves casts of the weights that know no gradient."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, inputs):
        with torch.no_grad():
            teacher = self.net(inputs)
        return nn.functional.mse_loss(self.net(inputs), teacher + 1)


def test_a_forward_without_gradients_does_not_take_them_from_the_next():
    model = SelfDistilled()
    step = TrainStep(model, sgd(model), precision="bf16")
    before = model.net.bias.detach().clone()
    step(torch.randn(8, 6))
    torch.testing.assert_close(model.net.bias - before, torch.full((3,), 0.1 * 2 / 3), rtol=0.02, atol=0)


def test_batches_weigh_as_many_items_as_they_have():
    model = nn.Linear(6, 3)
    reference = copy.deepcopy(model)
    batches = [(torch.randn(size, 6), torch.randint(0, 3, (size,))) for size in (8, 2, 5)]
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=3, precision="fp32")
    for inputs, labels in batches:
        step(inputs, labels, items=len(labels))
    own = sgd(reference)
    inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    nn.functional.cross_entropy(reference(inputs), labels).backward()
    own.step()
    torch.testing.assert_close(model.weight, reference.weight)
    step(*batches[0], items=8)
    with pytest.raises(TypeError, match="all batches of a window have items, or none; got items=None"):
        step(*batches[1])
