"""``evaluate``: what metrics are given, and that the model is left as it was."""

import copy
import warnings

import pytest
import torch
import torchmetrics
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

import fastload as fl
from tests.handwritten import Delegating, TinyNet, make_batches, sgd
from tests.lives import be_born, run_ranks

on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


pytestmark = pytest.mark.usefixtures("repeatable")


def accuracy(**options):
    return MulticlassAccuracy(num_classes=5, average="micro", **options)


class Kept:
    """A metric of one's own, which keeps what it is given."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.batches = []

    def update(self, outputs, targets):
        self.batches.append((outputs, targets))

    def compute(self):
        return self.batches


class MeanLoss(torchmetrics.Metric):
    """The loss as a metric, as docs/evaluation.md shows it."""

    def __init__(self, loss_fn):
        super().__init__()
        self.loss_fn = loss_fn
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("samples", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, outputs, targets):
        self.total += self.loss_fn(outputs, targets) * len(targets)
        self.samples += len(targets)

    def compute(self):
        return self.total / self.samples


@on_devices
def test_metrics_of_torchmetrics_are_computed_over_all_batches(device):
    model, batches = TinyNet().to(device), make_batches(6, device)
    batches[-1] = tuple(part[:2] for part in batches[-1])
    images, labels = map(torch.cat, zip(*batches, strict=True))
    with torch.no_grad():
        outputs = copy.deepcopy(model).eval()(images)
    right = (outputs.argmax(1) == labels).sum() / len(labels)

    assert fl.evaluate(model, batches, accuracy(), precision="fp32") == right
    assert fl.evaluate(model, iter(batches), {"top1": accuracy()}, precision="fp32") == {"top1": right}
    collection = torchmetrics.MetricCollection({"top1": accuracy(), "loss": MeanLoss(nn.functional.cross_entropy)})
    computed = fl.evaluate(model, batches, collection, precision="fp32")
    assert computed["top1"] == right
    torch.testing.assert_close(computed["loss"], nn.functional.cross_entropy(outputs, labels))
    assert fl.evaluate(model, batches) == {}


def test_a_metric_is_reset_at_the_start_and_can_be_asked_again_after_the_end():
    model, metric, batches = TinyNet(), accuracy(), make_batches(4)
    first = fl.evaluate(model, batches, metric)
    assert fl.evaluate(model, batches[:1], metric) == fl.evaluate(model, batches[:1], accuracy())
    assert fl.evaluate(model, batches, metric) == first == metric.compute()


class Spy(nn.Module):
    def forward(self, inputs):
        self.seen = torch.is_grad_enabled(), self.training
        return inputs


def assert_left_as_it_was(model, modes):
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_the_model_is_in_evaluation_mode_without_gradients_and_each_module_in_its_own_again():
    model = nn.Sequential(TinyNet(), Spy(), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(5)))
    model[0][2].eval()  # kept frozen while the rest trains
    model[2].eval()
    model[2][0].train()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]

    ((outputs, _),) = fl.evaluate(model, make_batches(1), Kept())
    assert not outputs.requires_grad
    assert model[1].seen == (False, False)
    assert_left_as_it_was(model, modes)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_an_error_leaves_the_model_as_it_was_too():
    def spoilt():
        yield from make_batches(2)
        raise OSError("a bad file")

    model = TinyNet()
    model[2].eval()
    modes = [module.training for module in model.modules()]
    with pytest.raises(OSError, match="a bad file"):
        fl.evaluate(model, spoilt(), accuracy())
    assert_left_as_it_was(model, modes)


def test_a_wrapper_that_is_no_module_is_evaluated_and_left_as_it_was():
    model = TinyNet()
    assert fl.evaluate(Delegating(model), make_batches(2), accuracy()) is not None
    assert model.training


class Merging(nn.Linear):
    """Adds its adapter to its weight for evaluation, and takes it off for training, as LoRA's layers do."""

    merged = False

    def train(self, mode=True):
        super().train(mode)
        if self.merged is mode:
            self.weight.data += -1.0 if mode else 1.0
            self.merged = not mode
        return self


def test_what_modules_do_when_their_mode_changes_they_do_both_ways():
    model = nn.Sequential(nn.Flatten(), Merging(192, 5))
    before = copy.deepcopy(model)
    ((outputs, _),) = fl.evaluate(model, [batch := make_batches(1)[0]], Kept())
    assert torch.equal(outputs, before.eval()(batch[0]))
    assert torch.equal(model[1].weight, before.train()[1].weight)


class WithTable(nn.Module):
    """Makes what it needs when it is first called, as detection models their anchors."""

    table = None

    def forward(self, inputs):
        if self.table is None:
            self.table = torch.arange(5.0, device=inputs.device)
        return inputs * self.table


@pytest.mark.parametrize(
    ("device", "compiled"),
    [
        ("cpu", False),
        pytest.param("cuda", False, marks=pytest.mark.gpu),
        pytest.param("cuda", True, marks=pytest.mark.gpu),
    ],
)
def test_a_model_that_was_evaluated_first_trains_afterwards(device, compiled):
    model = nn.Sequential(TinyNet(), WithTable()).to(device)
    step = fl.TrainStep(torch.compile(model) if compiled else model, sgd(model), nn.CrossEntropyLoss())
    for batch in make_batches(2, device):
        fl.evaluate(step.model, [batch], accuracy())
        assert step(*batch).loss.isfinite()


@on_devices
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_metrics_see_what_the_precision_does_to_outputs_but_compute_in_float32(precision, dtype, device):
    model, batches = TinyNet().to(device), make_batches(2, device)

    class Region(Kept):
        def update(self, outputs, targets):
            super().update(outputs, targets)
            assert not torch.is_autocast_enabled(device)

    kept = fl.evaluate(model, batches, Region(), precision=precision)
    for (outputs, _), (images, _) in zip(kept, batches, strict=True):
        with torch.no_grad(), torch.autocast(device, dtype, enabled=dtype != torch.float32):
            expected = copy.deepcopy(model).eval()(images)
        assert expected.dtype == dtype
        assert outputs.dtype == torch.float32
        assert torch.equal(outputs, expected.float())


def test_other_dtypes_are_left_alone_however_deep():
    class Several(nn.Module):
        def forward(self, inputs):
            return {"half": [inputs.half()], "double": (inputs.double(),), "mask": inputs > 0, "name": "a"}

    ((outputs, _),) = fl.evaluate(Several(), [(torch.randn(3), None)], Kept())
    assert [outputs["half"][0].dtype, outputs["double"][0].dtype] == [torch.float32, torch.float64]
    assert (outputs["mask"].dtype, outputs["name"]) == (torch.bool, "a")


def test_fp16_on_the_cpu_warns_at_the_users_line():
    with pytest.warns(UserWarning, match="computing in fp32 instead") as caught:
        fl.evaluate(TinyNet(), make_batches(1), accuracy(), precision="fp16")
    assert [warning.filename for warning in caught] == [__file__]


def test_averaged_weights_are_evaluated_inside_their_block():
    model = TinyNet()
    step = fl.TrainStep(model, sgd(model), nn.CrossEntropyLoss(), ema=0.9)
    batches = make_batches(4)
    for batch in batches:
        step(*batch)
    averaged = TinyNet()
    averaged.load_state_dict(step.ema.state_dict())
    with step.ema.applied():
        applied = fl.evaluate(model, batches, Kept())
    expected = fl.evaluate(averaged, batches, Kept())
    assert all(torch.equal(one[0], other[0]) for one, other in zip(applied, expected, strict=True))
    assert step(*batches[0]).stepped


@on_devices
def test_detections_go_to_metrics_with_their_targets(device):
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64, box_score_thresh=0.0
    ).to(device)
    images = [torch.rand(3, 60, 64, device=device), torch.rand(3, 64, 48, device=device)]
    target = {"boxes": torch.tensor([[1.0, 2.0, 30.0, 40.0]], device=device), "labels": torch.ones(1, device=device)}
    ((detections, targets),) = fl.evaluate(model, [(images, [target, target])], Kept(), precision="bf16")
    assert targets == [target, target]
    assert [sorted(each) for each in detections] == [["boxes", "labels", "scores"]] * 2
    assert {each["scores"].dtype for each in detections} == {torch.float32}
    assert model.training


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ({"image": torch.zeros(2, 4), "label": torch.zeros(2)}, "got a dict of 2"),
        (torch.zeros(2, 4), "got a Tensor."),
        ((torch.zeros(2, 4),) * 3, "got a tuple of 3"),
    ],
    ids=["dict", "tensor", "triple"],
)
def test_batches_that_are_no_pairs_are_refused(batch, got):
    with pytest.raises(TypeError, match=rf"a batch must be a pair, \(inputs, targets\); {got}"):
        fl.evaluate(nn.Linear(4, 2), [batch], accuracy())


@pytest.mark.parametrize(
    ("model", "got"),
    [
        (nn.Linear, r"the class Linear: write Linear\(\)"),
        (torch.relu, "<built-in method relu.*Pass the module itself"),
        ([nn.Linear(4, 2)], r"\[Linear\(in_features=4"),
        (None, "None"),
    ],
    ids=["class", "function", "list", "none"],
)
def test_what_is_no_model_is_refused(model, got):
    with pytest.raises(TypeError, match=f"model must be a torch.nn.Module; got {got}"):
        fl.evaluate(model, [])


@pytest.mark.parametrize(
    ("metrics", "got"),
    [
        ([accuracy()], "metric: a list without update, compute, reset"),
        (
            {"top1": accuracy(), "loss": nn.CrossEntropyLoss()},
            "loss: a CrossEntropyLoss without update, compute, reset",
        ),
        (Kept, r"the class Kept: write Kept\(\)"),
        ({"top1": accuracy(), "kept": Kept}, r"the class Kept: write Kept\(\)"),
    ],
    ids=["list", "function", "class", "class in a mapping"],
)
def test_what_is_no_metric_is_refused(metrics, got):
    with pytest.raises(TypeError, match=f"metrics must have update, compute and reset.*; got {got}"):
        fl.evaluate(nn.Linear(4, 2), [], metrics)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_g12_evaluation_does_not_wait(precision):
    model = TinyNet().cuda()
    batches = make_batches(4, "cuda")
    metrics = {"top1": accuracy(validate_args=False), "loss": MeanLoss(nn.CrossEntropyLoss())}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fl.evaluate(model, batches, metrics, precision=precision)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        computed = fl.evaluate(model, batches, metrics, precision=precision)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(value.isfinite() for value in computed.values())


def evaluate_as_rank(rank, home):
    be_born()
    distributed.init_process_group("gloo", f"file://{home / 'store'}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model, batches = TinyNet(), make_batches(4)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    step = fl.TrainStep(model, sgd(model), nn.CrossEntropyLoss(), ema=0.9)
    before = fl.evaluate(model, batches[rank::2], accuracy())
    for batch in batches:
        step(*batch)
        with step.ema.applied():
            averaged = fl.evaluate(model, batches[rank::2], MeanLoss(nn.functional.cross_entropy))
    trained = fl.evaluate(model, batches[rank::2], MeanLoss(nn.functional.cross_entropy))
    torch.save((before, averaged, trained), home / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.long
def test_ranks_evaluate_their_shares_of_a_sharded_model_and_train_on(tmp_path):
    run_ranks(evaluate_as_rank, tmp_path)

    torch.manual_seed(0)
    model, batches = TinyNet(), make_batches(4)
    step = fl.TrainStep(model, sgd(model), nn.CrossEntropyLoss(), ema=0.9)
    before = fl.evaluate(model, batches, accuracy())
    for batch in batches:
        step(*batch)
    with step.ema.applied():
        averaged = fl.evaluate(model, batches, MeanLoss(nn.functional.cross_entropy))
    trained = fl.evaluate(model, batches, MeanLoss(nn.functional.cross_entropy))
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), (before, averaged, trained))
