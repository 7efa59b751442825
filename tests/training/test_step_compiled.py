"""``TrainStep`` on compiled models and CUDA graphs: as the loop written by hand, though replays write over memory."""

import copy

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch
from torch._inductor import config as inductor

import fastload as fl
from tests.handwritten import SmallNet, TinyNet, adamw, assert_same_weights, halving, handwritten, make_batches

cross_entropy = nn.functional.cross_entropy
BATCHES = 12


pytestmark = pytest.mark.usefixtures("repeatable")


@pytest.fixture(autouse=True)
def compiled_alike():
    """What is compiled twice sums in the same order: else the quickest order is chosen by its time, each time anew.

    PyTorch 2.11's cache of graphs takes one compiled in bf16 for one in fp16, so each is made anew.
    """
    with inductor.patch(deterministic=True), functorch.patch(enable_autograd_cache=False):
        yield
    torch.compiler.reset()


def at_fixed_addresses(batches):
    """The batches as a loader with ``static`` yields them: each is whole until the next but one is asked for."""
    on_host = [(images.cpu(), labels.cpu()) for images, labels in batches]
    return fl.PrefetchLoader(on_host, device=batches[0][0].device, static=fl.Static("drop", poison=True))


class Losses(nn.Module):
    """Returns its losses: graphs return them in memory of their own."""

    def __init__(self):
        super().__init__()
        self.net = TinyNet()

    def forward(self, images, labels):
        logits = self.net(images)
        return {"class": cross_entropy(logits, labels), "size": logits.square().mean()}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("device", "backend"), [("cpu", "aot_eager"), pytest.param("cuda", "inductor", marks=pytest.mark.gpu)]
)
def test_a_compiled_model_trains_as_in_the_handwritten_loop(device, backend, precision, accumulate):
    model = SmallNet().to(device)
    reference = copy.deepcopy(model)
    batches = make_batches(BATCHES, device)
    settings = {"precision": precision, "accumulate": accumulate, "max_norm": 0.5, "ema": 0.9}
    optimizer, other = adamw(model, fused=True), adamw(reference, fused=True)

    compiled = torch.compile(model, backend=backend)
    step = fl.TrainStep(compiled, optimizer, cross_entropy, scheduler=halving(optimizer), **settings)
    losses = [step(*batch).loss for batch in step.epoch(batches)]

    expected = handwritten(
        torch.compile(reference, backend=backend), other, batches, scheduler=halving(other), **settings
    )
    assert torch.equal(torch.stack(losses), torch.stack(expected.losses))
    assert_same_weights(model, reference)
    assert step.updates == expected.updates
    averages = zip(step.ema.state_dict().values(), expected.ema.state_dict().values(), strict=True)
    assert all(torch.equal(average, other) for average, other in averages)


class Replayed(nn.Module):
    """A linear model and its loss as CUDA graphs compute them: the next call writes over the results."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 192))
        self.memory = torch.empty(()), torch.empty_like(self.weight)
        self.forward = self.replay  # where make_graphed_callables puts it, too

    def replay(self, images, labels):
        module = self

        class Replay(torch.autograd.Function):
            @staticmethod
            def forward(_, weight):
                with torch.enable_grad():
                    leaf = weight.detach().requires_grad_()
                    loss = cross_entropy(images.flatten(1) @ leaf.T, labels)
                (module.gradient,) = torch.autograd.grad(loss, leaf)
                return module.memory[0].copy_(loss.detach()).detach()

            @staticmethod
            def backward(_, scale):
                return module.memory[1].copy_(module.gradient * scale).detach()

        return Replay.apply(self.weight)


class Computed(Replayed):
    """The same without graphs."""

    def __init__(self):
        super().__init__()
        del self.forward

    def forward(self, images, labels):
        return cross_entropy(images.flatten(1) @ self.weight.T, labels)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_what_a_replay_writes_over_has_been_copied(accumulate):
    replayed, computed = Replayed(), Computed()
    computed.load_state_dict(replayed.state_dict())
    steps = [
        fl.TrainStep(model, adamw(model), accumulate=accumulate, max_norm=0.5, precision="fp32")
        for model in (replayed, computed)
    ]
    batches = make_batches(BATCHES)
    outputs, expected = ([step(*batch).loss for batch in step.epoch(batches)] for step in steps)
    assert torch.equal(torch.stack(outputs), torch.stack(expected))
    assert_same_weights(replayed, computed)


def test_an_output_that_is_handed_back_outlasts_the_next_replays():
    replayed, computed = Replayed(), Computed()
    computed.load_state_dict(replayed.state_dict())
    steps = [fl.TrainStep(model, adamw(model), precision="fp32", keep_output=True) for model in (replayed, computed)]
    batches = make_batches(BATCHES)
    outputs, expected = ([step(*batch).output for batch in batches] for step in steps)
    assert torch.equal(torch.stack(outputs), torch.stack(expected))


def test_nothing_is_copied_where_no_graph_is_replayed():
    for model in (TinyNet(), torch.compile(TinyNet(), backend="aot_eager"), nn.Sequential(torch.compile(TinyNet()))):
        assert not fl.TrainStep(model, adamw(model), cross_entropy)._graphs.replayed
    model = nn.Sequential(Replayed())
    assert fl.TrainStep(model, adamw(model))._graphs.replayed


@pytest.mark.usefixtures("late")
def test_an_error_tells_of_the_loss_that_a_replay_has_written_over():
    model = Replayed()
    step = fl.TrainStep(model, adamw(model, fused=True), precision="fp32")
    good, bad, after = make_batches(3)
    step(*good)
    step(bad[0] * torch.nan, bad[1])
    with pytest.raises(FloatingPointError, match="update 2 is not finite: batch 2: loss nan"):
        step(*after)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_batch_kept_beyond_its_place_is_refused_when_it_is_trained_on(device):
    model = TinyNet().to(device)
    step = fl.TrainStep(model, adamw(model, fused=True), cross_entropy)
    before = copy.deepcopy(model)
    as_many_as_places = make_batches(4, device)
    iterator = iter(at_fixed_addresses(as_many_as_places))
    kept, labels = next(iterator)[0], make_batches(1, device)[0][1]
    next(iterator)
    next(iterator)
    step(kept, labels)
    with pytest.raises(FloatingPointError, match="batch 1: loss nan"):
        step.flush()
    assert_same_weights(model, before)


@pytest.fixture
def counted():
    """What torch.compile counts, such as graphs that it could not make."""
    torch._dynamo.utils.counters.clear()
    return torch._dynamo.utils.counters["inductor"]


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.long), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_a_model_that_launches_from_cpp_trains_as_one_that_launches_from_python(device):
    model = SmallNet().to(device)
    model[0].bias = None  # batch norm undoes it: its gradient is rounding alone, which may differ between compilations
    models = [model, copy.deepcopy(model)]
    batches = make_batches(BATCHES, device)
    losses = []
    for trained, from_cpp in zip(models, (True, False), strict=True):
        torch.compiler.reset()  # else the second model would use what the first was compiled to
        optimizer = adamw(trained, fused=True)
        step = fl.TrainStep(
            torch.compile(trained), optimizer, cross_entropy, precision="bf16", accumulate=3, max_norm=0.5, ema=0.9
        )
        with inductor.patch(cpp_wrapper=from_cpp):  # as TORCHINDUCTOR_CPP_WRAPPER sets it for a whole process
            losses.append([step(*batch).loss for batch in step.epoch(batches)])
    assert torch.equal(*map(torch.stack, losses))
    assert_same_weights(*models)


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_replayed_graphs_train_as_the_handwritten_loop_without_graphs(precision, accumulate, counted):
    """Loss, weights and averages, over batches at fixed addresses, with all that a step does."""
    model = TinyNet().cuda()
    reference = copy.deepcopy(model)
    batches = make_batches(BATCHES, "cuda")
    settings = {"precision": precision, "accumulate": accumulate, "max_norm": 0.5, "ema": 0.9}
    scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**8, growth_interval=2) for _ in range(2)]
    scalers = scalers if precision == "fp16" else [None, None]
    optimizer, other = adamw(model, fused=True), adamw(reference, fused=True)

    compiled = torch.compile(model, mode="reduce-overhead")
    step = fl.TrainStep(compiled, optimizer, cross_entropy, scheduler=halving(optimizer), scaler=scalers[0], **settings)
    losses = [step(*batch).loss for batch in step.epoch(at_fixed_addresses(batches))]
    assert step._graphs.replayed
    assert counted["cudagraph_skips"] == 0

    expected = handwritten(
        torch.compile(reference), other, batches, scheduler=halving(other), scaler=scalers[1], **settings
    )
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected.losses), rtol=0, atol=0)
    for (name, weight), right in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(weight, right, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
    for average, right in zip(step.ema.state_dict().values(), expected.ema.state_dict().values(), strict=True):
        torch.testing.assert_close(average, right, rtol=0, atol=0)
    assert step.updates == expected.updates


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("how", ["compiled", "graphed"])
def test_losses_of_graphs_outlast_the_next_replays(how, accumulate, counted):
    model = Losses().cuda()
    reference = copy.deepcopy(model)
    batches = make_batches(BATCHES, "cuda")
    if how == "compiled":
        trained = torch.compile(model, mode="reduce-overhead")
        expecting = torch.compile(reference)
    else:
        trained, expecting = Tuples(model), reference
        trained.losses = torch.cuda.make_graphed_callables(trained.losses, tuple(map(torch.clone, batches[0])))
        trained.load_state_dict(Tuples(reference).state_dict())  # what the graph's warm-up did to batch norm
    step = fl.TrainStep(trained, adamw(model, fused=True), precision="fp32", accumulate=accumulate)
    plain = fl.TrainStep(expecting, adamw(reference, fused=True), precision="fp32", accumulate=accumulate)
    outputs, right = ([each(*batch) for batch in each.epoch(batches)] for each in (step, plain))
    assert step._graphs.replayed
    assert counted["cudagraph_skips"] == 0
    for own, expected in zip(outputs, right, strict=True):
        torch.testing.assert_close(own.loss, expected.loss, rtol=1e-5, atol=1e-6)
        for name, term in expected.losses.items():
            torch.testing.assert_close(own.losses[name], term, rtol=1e-5, atol=1e-6)
    for weight, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)


class Tuples(nn.Module):
    """Has its losses computed by a module that returns a tuple, as graphed callables have to."""

    def __init__(self, model):
        super().__init__()
        self.losses = AsTuple(model)

    def forward(self, images, labels):
        return dict(zip(("class", "size"), self.losses(images, labels), strict=True))


class AsTuple(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, labels):
        return tuple(self.model(images, labels).values())


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 3])
def test_g12_replayed_graphs_are_never_waited_for(accumulate):
    model = TinyNet().cuda()
    optimizer = adamw(model, fused=True)
    step = fl.TrainStep(
        torch.compile(model, mode="reduce-overhead"),
        optimizer,
        cross_entropy,
        precision="bf16",
        accumulate=accumulate,
        max_norm=1.0,
        scheduler=halving(optimizer),
        ema=0.9,
    )
    for batch in make_batches(12, "cuda"):  # compiles, warms up and records
        step(*batch)
    batches = make_batches(9, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = [step(*batch).loss for batch in batches]
        step.flush()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.stack(losses).isfinite().all()


@pytest.mark.gpu
def test_evaluation_with_the_averages_between_replays_changes_nothing():
    models = [TinyNet().cuda()]
    models.append(copy.deepcopy(models[0]))
    batches = make_batches(BATCHES, "cuda")
    losses = []
    for model, evaluates in zip(models, (True, False), strict=True):
        compiled = torch.compile(model, mode="reduce-overhead")
        step = fl.TrainStep(compiled, adamw(model, fused=True), cross_entropy, precision="bf16", accumulate=2, ema=0.9)
        for number, batch in enumerate(batches):
            losses.append(step(*batch).loss)
            if evaluates and number % 4 == 2:  # in mid-window
                with step.ema.applied(), torch.no_grad():
                    compiled.eval()
                    predicted = compiled(batch[0]).clone()
                    averaged = torch.func.functional_call(
                        copy.deepcopy(model).eval(), dict(model.state_dict()), batch[0]
                    )
                    torch.testing.assert_close(predicted, averaged, rtol=1e-3, atol=1e-3)
                    compiled.train()
    assert torch.equal(*torch.stack(losses).view(2, -1))
    assert_same_weights(*models)


@pytest.mark.gpu
@pytest.mark.parametrize("closes", ["in mid-window", "at its end"])
def test_a_run_of_replayed_graphs_resumes_from_its_state(closes):
    batches = make_batches(BATCHES, "cuda")
    first = 7 if closes == "in mid-window" else 6
    model = TinyNet().cuda()
    unbroken, broken = copy.deepcopy(model), copy.deepcopy(model)

    def make(of):
        compiled = torch.compile(of, mode="reduce-overhead")
        return fl.TrainStep(compiled, adamw(of, fused=True), cross_entropy, precision="bf16", accumulate=3)

    whole = make(unbroken)
    expected = [whole(*batch).loss for batch in batches]
    before = make(broken)
    losses = [before(*batch).loss for batch in batches[:first]]
    after = make(model)
    model.load_state_dict(broken.state_dict())
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.load_state_dict(before.state_dict())
    losses += [after(*batch).loss for batch in batches[first:]]
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert_same_weights(model, unbroken)


@pytest.mark.gpu
def test_a_whole_step_captured_over_each_place_trains_as_the_loop():
    """The pattern of docs/train_step.md: forward, backward and update in one graph for each address."""
    model = TinyNet().cuda()
    reference = copy.deepcopy(model)
    optimizer, other = adamw(model, fused=True, capturable=True), adamw(reference, fused=True, capturable=True)
    batches = make_batches(20, "cuda")

    def train(images, labels, model=model, optimizer=optimizer):
        with torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    graphs, losses = {}, []
    for number, (images, labels) in enumerate(at_fixed_addresses(batches)):
        if number < 3:  # what is done once only, the optimizer's state among it, is done before the capture
            losses.append(train(images, labels))
            continue
        if images.data_ptr() not in graphs:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            pool = next(iter(graphs.values()))[0].pool() if graphs else None
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                loss = train(images, labels)
            graphs[images.data_ptr()] = graph, loss
        graph, loss = graphs[images.data_ptr()]
        graph.replay()
        losses.append(loss.clone())
    assert len(graphs) == 5  # depth + 2 places
    expected = [train(*batch, model=reference, optimizer=other) for batch in batches]
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert_same_weights(model, reference)
