"""Mixed images and labels, against torchvision's."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2
from torchvision.transforms.v2._utils import _find_labels_default_heuristic

from fastload import transforms as T
from fastload.structure.labels import find_labels
from fastload.structure.tree import tree_flatten
from fastload.transforms.mix import CutMix, MixUp, MixUpCutMix, soft_labels
from tests.counts import examples
from tests.kernels.whole import batches
from tests.transforms.draws import (
    DEVICES,
    KEY,
    KEYS,
    assert_becomes,
    assert_same_distribution,
    assert_share,
    images,
    sizes,
    sizes_of,
)

LABELS = torch.tensor([3, 0, 1, 1, 2])
BATCHES = 3_000


def drawn(transform, height=20, width=30):
    """What as many batches as are needed for statistics are mixed by."""
    given = sizes(2, height, width)
    return [transform.sample(given, T.Key(place=2 * batch)) for batch in range(BATCHES)]


@pytest.mark.parametrize("device", DEVICES)
@examples(full=500, here=100)
@given(batch=batches(largest=40), alpha=st.floats(0.1, 4), key=KEYS)
def test_mixup_is_torchvisions(device, batch, alpha, key):
    labels = LABELS[: len(batch)]
    mixup, theirs = MixUp(alpha, num_classes=4), v2.MixUp(alpha=alpha, num_classes=4)
    mixture = mixup.sample(sizes_of(batch), key)
    params = {"lam": float(mixture.own[0]), "labels": labels, "batch_size": len(batch)}
    assert_becomes(mixup, batch, theirs.transform(batch, params), device, key=key)
    torch.testing.assert_close(mixup.labels(labels, mixture), theirs.transform(labels, params), atol=1e-6, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@examples(full=500, here=100)
@given(batch=batches(largest=40), alpha=st.floats(0.1, 4), key=KEYS)
def test_cutmix_is_torchvisions(device, batch, alpha, key):
    labels = LABELS[: len(batch)]
    cutmix, theirs = CutMix(alpha, num_classes=4), v2.CutMix(alpha=alpha, num_classes=4)
    mixture = cutmix.sample(sizes_of(batch), key)
    top, left, height, width = mixture.mix.boxes[0].tolist()
    share = 1 - height * width / batch[0, 0].numel()
    params = {"box": (left, top, left + width, top + height), "lam_adjusted": share, "labels": labels}
    params["batch_size"] = len(batch)
    assert_becomes(cutmix, batch, theirs.transform(batch, params), device, tolerance=0, key=key)
    torch.testing.assert_close(cutmix.labels(labels, mixture), theirs.transform(labels, params))


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_what_is_drawn_is_torchvisions(alpha):
    torch.manual_seed(0)
    mixup, cutmix = v2.MixUp(alpha=alpha), v2.CutMix(alpha=alpha)
    batch = torch.empty(2, 3, 20, 30)
    assert_same_distribution(
        [float(each.own[0]) for each in drawn(MixUp(alpha))], [mixup.make_params([])["lam"] for _ in range(BATCHES)]
    )
    boxes = torch.stack([each.mix.boxes[0] for each in drawn(CutMix(alpha))])
    params = [cutmix.make_params([batch])["box"] for _ in range(BATCHES)]
    theirs = torch.tensor([[y1, x1, y2 - y1, x2 - x1] for x1, y1, x2, y2 in params])
    for column in range(4):
        assert_same_distribution(boxes[:, column], theirs[:, column])
    assert_same_distribution(boxes[:, 2] * boxes[:, 3], theirs[:, 2] * theirs[:, 3])


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 1000), (224, 224)])
def test_cut_boxes_lie_in_their_images(height, width):
    boxes = torch.stack([each.mix.boxes[0] for each in drawn(CutMix(), height, width)[:500]])
    assert (boxes >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor([height, width])).all()


def test_one_of_both_is_drawn_for_each_batch():
    cut = torch.tensor([bool(each.mix.outside[0] == 1) for each in drawn(MixUpCutMix(switch_prob=0.3))])
    assert_share(cut, 0.3)


def test_a_draw_depends_on_the_key_alone():
    mixup = MixUpCutMix(num_classes=4)
    first, again = (mixup.sample(sizes(5, 8, 9), KEY) for _ in range(2))
    assert torch.equal(first.own, again.own)
    assert not torch.equal(first.own, mixup.sample(sizes(5, 8, 9), KEY.advanced(5)).own)


def test_a_batch_of_one_stays_as_it_is():
    batch = images(1, 3, 8, 9)
    torch.testing.assert_close(MixUp()(batch, KEY), batch)
    assert MixUp().sample(sizes(1, 8, 9), KEY).own.shape == (1,)


def test_labels_may_be_soft_already_and_are_smoothed():
    soft = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert torch.equal(soft_labels(soft, None), soft)
    smooth = soft_labels(LABELS, 4, label_smoothing=0.1)
    torch.testing.assert_close(smooth.sum(1), torch.ones(5))
    torch.testing.assert_close(smooth[0], torch.tensor([0.025, 0.025, 0.025, 0.925]))
    # Cross-entropy of smoothed labels is that of labels which the loss smooths.
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy
    torch.testing.assert_close(loss(logits, smooth), loss(logits, LABELS, label_smoothing=0.1))


class Sample(NamedTuple):
    index: torch.Tensor
    image: torch.Tensor
    label: torch.Tensor


@dataclass
class Fields:
    image: torch.Tensor
    index: torch.Tensor
    LABELS: torch.Tensor


INDEX, OWN = torch.tensor([1, 0]), torch.tensor([2, 3])


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        (("images", OWN), (1,)),
        (["images", OWN, INDEX], (1,)),
        ({"image": "images", "index": INDEX, "label": OWN}, ("label",)),
        ({"index": INDEX, "a_label": INDEX, "Labels": OWN}, ("Labels",)),
        (("images", {"index": INDEX, "fine_label": OWN}), (1, "fine_label")),
    ],
)
def test_labels_are_those_that_torchvision_finds(batch, path):
    assert _find_labels_default_heuristic(batch) is OWN
    assert find_labels(tree_flatten(batch)) == path
    assert find_labels(tree_flatten(batch), _find_labels_default_heuristic) == path
    assert find_labels(tree_flatten(batch), None) is None


def test_fields_of_named_tuples_and_dataclasses_are_keys():
    assert find_labels(tree_flatten(Sample(INDEX, images(2, 3, 4, 4), OWN))) == (2,)
    assert find_labels(tree_flatten(Fields(images(2, 3, 4, 4), INDEX, OWN))) == ("LABELS",)


@pytest.mark.parametrize(
    ("batch", "getter", "message"),
    [
        ({"image": OWN, "target": OWN}, "default", r"finds no labels.*batch\['target'\]: Tensor torch.int64 \(2,\)"),
        (("images", [2, 3]), "default", "finds no labels"),
        (("images", OWN), lambda batch: batch[1] + 1, r"must find a tensor of the batch; it found tensor\(\[3, 4\]\)"),
    ],
)
def test_a_batch_without_labels_is_refused_with_the_line_to_write(batch, getter, message):
    with pytest.raises(TypeError, match=rf"(?s){message}.*pass labels_getter=lambda batch"):
        find_labels(tree_flatten(batch), getter)


def test_they_say_what_they_are():
    assert repr(MixUp(0.8, 10)) == "MixUp(alpha=0.8, num_classes=10, label_smoothing=0.0)"
    assert repr(CutMix()) == "CutMix(alpha=1.0, num_classes=None, label_smoothing=0.0)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixUp(0), "alpha must be positive; got 0"),
        (lambda: CutMix(-1.0), "alpha must be positive; got -1"),
        (lambda: MixUpCutMix(cutmix_alpha=0), "cutmix_alpha must be positive; got 0"),
        (lambda: MixUpCutMix(switch_prob=2), "switch_prob must be a probability.*got 2"),
        (lambda: MixUp(num_classes=0), "num_classes must be an int of at least 1; got 0"),
        (lambda: MixUp(label_smoothing=1), r"label_smoothing must be below 1.*got 1"),
        (lambda: MixUp().sample(torch.tensor([[2, 3], [3, 2]]), KEY), "only images of one size"),
        (lambda: MixUp(labels_getter="first"), "labels_getter must be 'default', a callable.*got 'first'"),
        (lambda: soft_labels(LABELS, 3), "class numbers from 0 to 2.*got labels from 0 to 3: raise num_classes, or"),
        (lambda: soft_labels(-LABELS, 3), "class numbers from 0 to 2.*got labels from -3 to 0"),
        (lambda: MixUp().labels(torch.eye(3), MixUp().sample(sizes(2, 4, 4), KEY)), "2 images are mixed.* 3 labels"),
        (lambda: soft_labels(LABELS, None), "num_classes must be given.*got None"),
        (lambda: soft_labels(torch.zeros(2, 3), 4), r"or soft, \(N, 4\); got torch.float32 of shape \(2, 3\)"),
        (lambda: soft_labels(torch.zeros(3), 4), r"got torch.float32 of shape \(3,\)"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
