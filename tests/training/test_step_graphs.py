"""``TrainStep(graph=True)``: the same values as without graphs, bit for bit, or an error that says why it cannot be."""

import copy
import gc
import weakref
from collections import deque
from itertools import starmap

import pytest
import torch
from torch import nn

import fastload as fl
from fastload import transforms as T
from tests.handwritten import SmallNet, assert_same_weights, halving, make_batches

cross_entropy = nn.functional.cross_entropy
BATCHES, EPOCHS = 20, 5

pytestmark = pytest.mark.usefixtures("repeatable")


class Dropping(nn.Sequential):
    """With random numbers, a buffer that changes, and an integer one."""

    def __init__(self):
        *layers, last = SmallNet()
        super().__init__(nn.Sequential(*layers), nn.Dropout(0.25), last)


def optimizer_of(model, kind="adamw"):
    """With the learning rate as a tensor, as graphs need it: a float rounds otherwise."""
    rate = torch.tensor(1e-2, device=next(model.parameters()).device)
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, fused=kind == "adamw")


def loader_of(batches):
    on_host = [(images.cpu(), labels.cpu()) for images, labels in batches]
    return fl.PrefetchLoader(on_host, static=fl.Static("dynamic", refuse=True))


def trained(model, batches, *, graph, kind="adamw", loss_fn=cross_entropy, **settings):
    """The losses, the norms, and the step, of so many epochs that their last windows, if short, have graphs too."""
    optimizer = optimizer_of(model, kind)
    step = fl.TrainStep(model, optimizer, loss_fn, scheduler=halving(optimizer), graph=graph, **settings)
    torch.manual_seed(0)
    loader = loader_of(batches)
    outs = [step(*batch) for _ in range(EPOCHS) for batch in step.epoch(loader)]
    return torch.stack([out.loss for out in outs]), [out.grad_norm for out in outs if out.stepped], step


def assert_equal(losses, expected):
    torch.testing.assert_close(losses, expected, atol=0, rtol=0, equal_nan=True)


def assert_same_training(model, batches, **settings):
    reference = copy.deepcopy(model)
    losses, norms, step = trained(model, batches, graph=True, **settings)
    expected, expected_norms, other = trained(reference, batches, graph=False, **settings)
    assert_equal(losses, expected)
    assert_same_weights(model, reference)
    assert all(map(torch.equal, model.buffers(), reference.buffers()))
    assert step.updates == other.updates
    if settings.get("max_norm"):
        assert torch.equal(torch.stack(norms), torch.stack(expected_norms))
    if step.ema is not None:
        averages = zip(step.ema.state_dict().values(), other.ema.state_dict().values(), strict=True)
        assert all(torch.equal(average, other) for average, other in averages)
    return step


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["adamw", "adamw, foreach", "sgd"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_graphs_train_as_without_bit_for_bit(precision, accumulate, kind):
    settings = {"precision": precision, "accumulate": accumulate, "max_norm": 0.5, "ema": 0.9, "kind": kind}
    step = assert_same_training(Dropping().cuda(), make_batches(BATCHES), **settings)
    assert step._step_graphs._graphs


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.filterwarnings("ignore:the loss of update:RuntimeWarning")
def test_an_update_with_a_bad_loss_is_skipped_as_without_graphs(precision, accumulate):
    batches = make_batches(BATCHES)
    batches[8][0][0, 0, 0, 0] = torch.inf
    batches[-1][0].fill_(torch.nan)
    model = SmallNet().cuda()
    model[1].eval().requires_grad_(False)  # batch norm's running mean would keep the inf
    settings = {"precision": precision, "on_nonfinite": "skip", "clip_value": 0.1, "accumulate": accumulate}
    step = assert_same_training(model, batches, **settings)
    windows = -(-BATCHES // accumulate)
    assert step.updates == EPOCHS * (windows - 2)


@pytest.mark.gpu
def test_nothing_is_looked_at_where_that_is_asked_for():
    assert_same_training(SmallNet().cuda(), make_batches(BATCHES), precision="bf16", on_nonfinite="ignore", ema=0.9)


@pytest.mark.gpu
def test_a_step_is_captured_while_any_of_many_loaders_runs():
    """PyTorch has 32 streams to give: none that a loader works on may be the one that a step is captured on."""
    batches, model = make_batches(8), SmallNet().cuda()
    for _ in range(40):
        step = fl.TrainStep(model, optimizer_of(model), cross_entropy, precision="fp32", graph=True)
        for batch in loader_of(batches):
            step(*batch)
        assert step._step_graphs._graphs


@pytest.mark.gpu
def test_batches_of_several_shapes_have_graphs_of_their_own():
    sizes = zip(make_batches(4), (4, 3, 4, 2), strict=True)
    batches = [(images[:size].cuda(), labels[:size].cuda()) for (images, labels), size in sizes] * 8
    model = SmallNet().cuda()
    reference = copy.deepcopy(model)
    results = []
    for each, graph in ((model, True), (reference, False)):
        step = fl.TrainStep(each, optimizer_of(each), cross_entropy, precision="fp32", graph=graph)
        results.append(torch.stack([step(*batch).loss for batch in batches]))
    assert torch.equal(*results)
    assert_same_weights(model, reference)


@pytest.mark.gpu
def test_a_batch_that_is_a_dict_is_replayed():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = SmallNet()

        def forward(self, images, labels):
            return cross_entropy(self.net(images), labels)

    model = WithLoss().cuda()
    reference = copy.deepcopy(model)
    steps = [fl.TrainStep(each, optimizer_of(each), graph=graph) for each, graph in ((model, True), (reference, False))]
    for _ in range(EPOCHS):
        for images, labels in loader_of(make_batches(BATCHES)):
            losses = [step(labels=labels, images=images).loss for step in steps]
            assert torch.equal(*losses)
    assert_same_weights(model, reference)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_a_step_lets_go_of_the_model_without_the_cycle_collector(graph):
    """Large trainings run with ``gc.disable()``: a cycle would keep the weights, and what was captured."""
    batches = make_batches(BATCHES)
    trained(SmallNet().cuda(), batches, graph=graph)  # what is loaded and compiled once keeps what it meets first
    gc.collect()
    gc.disable()
    try:
        model = SmallNet().cuda()
        gone = [weakref.ref(model)]
        _, _, step = trained(model, batches, graph=graph, ema=0.9)
        gone.append(weakref.ref(step))
        del model, step
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


@pytest.mark.gpu
def test_a_student_and_its_teacher_learn_from_several_views_as_without_graphs():
    """As DINO does: the teacher follows the student within the loss function, and both see lists of views."""

    def follow_and_compare(student, teacher, views, labels):
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.1)
            taught = teacher(views[0]).softmax(-1)
        return sum(cross_entropy(student(view), taught) for view in views) + cross_entropy(student(views[0]), labels)

    recipe = T.MultiView([T.RandomHorizontalFlip(), *[[T.RandomCrop(8, padding=1), T.RandomInvert()]] * 3])
    images = [
        ((images.cpu() * 32 + 128).clamp(0, 255).byte(), labels.cpu()) for images, labels in make_batches(BATCHES)
    ]
    student = SmallNet().cuda()
    models = [student, copy.deepcopy(student).requires_grad_(requires_grad=False)]
    results = []
    for pair, graph in ((models, True), (copy.deepcopy(models), False)):
        loader = fl.PrefetchLoader(
            images,
            transform=T.Compose([recipe, T.Normalize([0.5] * 3, [0.5] * 3)]),
            static=fl.Static("dynamic", refuse=True),
        )
        step = fl.TrainStep(pair, optimizer_of(pair[0]), follow_and_compare, precision="bf16", graph=graph)
        results.append((torch.stack([step(*batch).loss for _ in range(2) for batch in loader]), pair))
        step.flush()
    (losses, models), (expected, references) = results
    assert torch.equal(losses, expected)
    for model, reference in zip(models, references, strict=True):
        assert_same_weights(model, reference)


@pytest.mark.gpu
def test_a_state_goes_on_where_it_was_saved():
    batches = [(images.cuda(), labels.cuda()) for images, labels in make_batches(4)] * 6
    model = SmallNet().cuda()
    reference = copy.deepcopy(model)

    def step_of(model):
        optimizer = optimizer_of(model)
        settings = {"precision": "bf16", "accumulate": 4, "ema": 0.9, "graph": True}
        return fl.TrainStep(model, optimizer, cross_entropy, scheduler=halving(optimizer), **settings)

    whole = step_of(reference)
    expected = [whole(*batch).loss for batch in batches]

    first = step_of(model)
    losses = [first(*batch).loss for batch in batches[:14]]  # within a window
    saved = copy.deepcopy([first.state_dict(), model.state_dict(), first.optimizer.state_dict()])
    second = step_of(SmallNet().cuda())
    second.model.load_state_dict(saved[1])
    second.optimizer.load_state_dict(saved[2])
    second.load_state_dict(saved[0])
    losses += [second(*batch).loss for batch in batches[14:]]
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert_same_weights(second.model, reference)


@pytest.mark.gpu
def test_an_optimizers_loaded_state_is_used():
    batches = [(images.cuda(), labels.cuda()) for images, labels in make_batches(2)] * 8
    model = SmallNet().cuda()
    step = fl.TrainStep(model, optimizer_of(model), cross_entropy, precision="fp32", graph=True)
    for batch in batches[:8]:
        step(*batch)
    start, weights = copy.deepcopy(step.optimizer.state_dict()), copy.deepcopy(model.state_dict())
    once = [step(*batch).loss for batch in batches[8:]]
    step.optimizer.load_state_dict(start)
    model.load_state_dict(weights)
    again = [step(*batch).loss for batch in batches[8:]]
    assert torch.equal(torch.stack(once), torch.stack(again))


@pytest.mark.gpu
def test_gradients_that_others_set_to_none_and_settings_that_change_are_no_matter():
    batch = tuple(each.cuda() for each in make_batches(1)[0])
    model = SmallNet().cuda()
    reference = copy.deepcopy(model)
    losses = []
    for each, graph in ((model, True), (reference, False)):
        optimizer = optimizer_of(each)
        step = fl.TrainStep(each, optimizer, cross_entropy, precision="fp32", graph=graph)
        losses.append([])
        for number in range(20):
            if number == 8:
                optimizer.param_groups[0]["weight_decay"] = 0.5
            losses[-1].append(step(*batch).loss)
            optimizer.zero_grad(set_to_none=True)
    assert torch.equal(*map(torch.stack, losses))


@pytest.mark.gpu
def test_memory_is_profiled_without_graphs():
    batch = tuple(each.cuda() for each in make_batches(1)[0])
    model = SmallNet().cuda()
    step = fl.TrainStep(model, optimizer_of(model), cross_entropy, precision="fp32", graph=True)
    losses = [step(*batch).loss for _ in range(6)]
    assert list(step.profile_memory(batch).first) == ["data", "forward", "loss", "backward", "step"]
    assert step(*batch).loss < losses[0]


@pytest.mark.gpu
def test_another_mode_and_frozen_weights_are_seen():
    batch = tuple(each.cuda() for each in make_batches(1)[0])
    model = Dropping().cuda()
    reference = copy.deepcopy(model)
    losses = []
    for each, graph in ((model, True), (reference, False)):
        step = fl.TrainStep(each, optimizer_of(each), cross_entropy, precision="fp32", graph=graph)
        torch.manual_seed(0)
        losses.append([])
        for number in range(18):
            if number == 8:
                step.model[1].eval()
            losses[-1].append(step(*batch).loss)
    assert torch.equal(*map(torch.stack, losses))


@pytest.fixture
def one_rank(tmp_path):
    settings = {"init_method": f"file://{tmp_path}/store", "rank": 0, "world_size": 1}
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0), **settings)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bucket_views", [False, True])
@pytest.mark.parametrize("prepared", [lambda parallel: parallel, torch.compile], ids=["eager", "compiled"])
def test_gradients_are_reduced_within_graphs(accumulate, bucket_views, prepared):
    batches = [tuple(each.cuda() for each in batch) for batch in make_batches(2)] * 20
    model = SmallNet().cuda()
    reference = copy.deepcopy(model)
    losses = []
    for each, graph in ((model, True), (reference, False)):
        with torch.cuda.stream(torch.cuda.Stream()):  # as PyTorch asks for, where DDP is to be captured
            parallel = nn.parallel.DistributedDataParallel(each, gradient_as_bucket_view=bucket_views)
        # A gradient that is a view into a bucket need not be aligned, and its norm is then summed in another order.
        settings = {"precision": "bf16", "accumulate": accumulate, "max_norm": None if bucket_views else 0.5}
        step = fl.TrainStep(prepared(parallel), optimizer_of(each), cross_entropy, graph=graph, **settings)
        losses.append(torch.stack([step(*batch).loss for batch in step.epoch(batches)]))
    assert torch.equal(*losses)
    assert_same_weights(model, reference)


class Reading(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = SmallNet()

    def forward(self, images):
        output = self.net(images)
        return output * 2 if output.sum().item() > 0 else output


class Centred(nn.Module):
    """Keeps a moving mean of its outputs, in a new tensor each time."""

    def __init__(self):
        super().__init__()
        self.net = SmallNet()
        self.register_buffer("centre", torch.zeros(5))

    def forward(self, images):
        output = self.net(images)
        self.centre = self.centre * 0.9 + output.detach().float().mean(0) * 0.1
        return output - self.centre


@pytest.mark.gpu
def test_a_buffer_that_the_model_assigns_is_refused_and_stays():
    batch = tuple(each.cuda() for each in make_batches(1)[0])
    model = Centred().cuda()
    step = fl.TrainStep(model, optimizer_of(model), cross_entropy, precision="fp32", graph=True)
    for _ in range(3):
        step(*batch)
    before = model.centre
    with pytest.raises(RuntimeError, match=r"cannot be captured .*: Centred assigns its buffer 'centre'.*centre.copy_"):
        step(*batch)
    assert model.centre is before
    assert before.isfinite().all()


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_says_why_and_training_can_go_on():
    batch = tuple(each.cuda() for each in make_batches(1)[0])
    model = Reading().cuda()
    step = fl.TrainStep(model, optimizer_of(model), cross_entropy, precision="fp32", graph=True)
    for _ in range(3):
        step(*batch)
    with pytest.raises(RuntimeError, match=r"graph=True: this step cannot be captured as a CUDA graph: .*captur"):
        step(*batch)
    step = fl.TrainStep(model, optimizer_of(model), cross_entropy, precision="fp32")
    assert torch.isfinite(torch.stack([step(*batch).loss for _ in range(3)])).all()
    assert torch.rand(2, device="cuda").isfinite().all()
    before = torch.cuda.memory_allocated()
    for images in fl.PrefetchLoader(torch.zeros(50, 1, 1000, 1000, dtype=torch.uint8)):
        images.sum()
    del images
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # lets the allocator see which memory is free
    assert torch.cuda.memory_allocated() - before < 10_000_000


@pytest.mark.gpu
def test_batches_at_new_addresses_are_refused_in_time():
    model = SmallNet().cuda()
    step = fl.TrainStep(model, optimizer_of(model), cross_entropy, precision="fp32", graph=True)
    batches = [(images.cuda(), labels.cuda()) for images, labels in make_batches(64)]
    with pytest.raises(RuntimeError, match="has made 32 graphs, and needs another: batches come at new addresses"):
        deque(starmap(step, batches), maxlen=0)


@pytest.mark.gpu
def test_what_graphs_do_not_take_is_refused():
    batch = tuple(each.cuda() for each in make_batches(1)[0])
    model = SmallNet().cuda()
    step = fl.TrainStep(model, optimizer_of(model), cross_entropy, graph=True)
    with pytest.raises(ValueError, match="graph=True takes no items"):
        step(*batch, items=3)
    with pytest.raises(ValueError, match=r"needs an optimizer whose update can be captured; got SGD.* fused=True"):
        fl.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), cross_entropy, graph=True)
    with pytest.raises(TypeError, match="takes batches of tensors and constants; got a bytearray"):
        fl.TrainStep(model, optimizer_of(model), lambda output, _: output.sum(), graph=True)(batch[0], bytearray(1))


def test_a_model_on_the_cpu_is_refused():
    model = SmallNet()
    with pytest.raises(ValueError, match="graph=True needs a model on a CUDA device; got one on cpu"):
        fl.TrainStep(model, torch.optim.AdamW(model.parameters()), cross_entropy, graph=True)
    with pytest.raises(TypeError, match="graph must be True or False; got 1"):
        fl.TrainStep(model, torch.optim.AdamW(model.parameters()), cross_entropy, graph=1)
