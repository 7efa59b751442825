"""Files to pixels: the same as Pillow's, in order, and bad files named."""

import io
import random
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

import fastload as fl
from fastload import transforms as T
from fastload.data.jpeg_library import library_decoder, torchvision_decode
from fastload.decode import device as decoding
from tests.files import BASELINE, by_pillow, mutated, saved


def smooth(height=48, width=64, seed=0):
    """Colours that change slowly: of these, half as many suffice."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(rng.uniform(2, 9) * x + rng.uniform(2, 9) * y + rng.uniform(0, 6)) for _ in range(3)]
    return Image.fromarray((127 + 100 * np.stack(waves, axis=-1)).astype(np.uint8))


def encoded(image=None, kind="JPEG", **options):
    return saved(image or smooth(), kind, **options)


def pixels(data):
    """What a Pillow user gets, uint8 (3, H, W)."""
    return np.array(by_pillow(data)).transpose(2, 0, 1)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

# Inverse cosine transform and colour conversion round differently in each decoder, by a few units.
ROUNDING = 4
LUMA = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)


def differs(image, expected, *, half_colours=False):
    """By how much an image differs from Pillow's.

    Colours stored at half the size are interpolated by some decoders and repeated by others: there it is the luma,
    which is not, and the colours on average, that agree.
    """
    difference = image.float() - torch.as_tensor(expected).float()
    if half_colours:
        return max((difference * LUMA).sum(0).abs().max(), difference.abs().mean())
    return difference.abs().max()


FILES = {
    "4:4:4": (encoded(quality=95, subsampling=0), ROUNDING),
    "4:2:2": (encoded(quality=95, subsampling=1), ROUNDING),
    "4:2:0": (encoded(quality=95, subsampling=2), ROUNDING),
    "odd sizes": (encoded(smooth(33, 47), quality=95, subsampling=0), ROUNDING),
    "grey": (encoded(smooth().convert("L")), ROUNDING),
    "CMYK": (encoded(smooth().convert("CMYK")), 0),
    "progressive": (encoded(progressive=True), 0),
    "restart markers": (encoded(subsampling=0, restart_marker_blocks=2), ROUNDING),
    "PNG": (encoded(kind="PNG"), 0),
    "PNG with a palette": (encoded(smooth().convert("P"), kind="PNG"), 0),
    "PNG with transparency": (encoded(smooth().convert("RGBA"), kind="PNG"), 0),
    "WebP": (encoded(kind="WEBP", lossless=True), 0),
}
HALF_COLOURS = {"4:2:2", "4:2:0"}
GOOD = encoded(smooth(40, 40), subsampling=0)
TRUNCATED = GOOD[: len(GOOD) // 2]


def decode(files, device, **options):
    return [image.cpu() for image in T.DecodeJpeg(device=device, **options)(fl.collate(files))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FILES)
def test_every_file_is_as_pillow_decodes_it(device, name):
    data, tolerance = FILES[name]
    (image,) = decode([data], device)
    expected = torch.tensor(pixels(data))
    assert image.shape == expected.shape
    assert differs(image, expected, half_colours=name in HALF_COLOURS) <= tolerance


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image(device, orientation):
    exif = smooth().getexif()
    exif[0x0112] = orientation
    data = encoded(exif=exif, subsampling=0)
    (image,) = decode([data], device)
    expected = torch.tensor(pixels(data))
    assert image.shape == expected.shape
    assert differs(image, expected) <= ROUNDING


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_no_image_that_is_to_be_as_it_is_stored(device, orientation, kind):
    exif = smooth().getexif()
    exif[0x0112] = orientation
    data = encoded(exif=exif, kind=kind, **({"subsampling": 0} if kind == "JPEG" else {}))
    (image,) = T.DecodeJpeg(device=device)(fl.collate([data], upright=False))
    expected = np.array(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
    assert image.shape == expected.shape
    assert differs(image.cpu(), expected) <= ROUNDING


@pytest.mark.parametrize("device", DEVICES)
def test_mixed_files_keep_their_order(device):
    rng = np.random.default_rng(0)
    names = list(rng.choice(list(FILES), size=60))
    images = decode([FILES[name][0] for name in names], device)
    for name, image in zip(names, images, strict=True):
        data, tolerance = FILES[name]
        assert differs(image, pixels(data), half_colours=name in HALF_COLOURS) <= tolerance, name


@pytest.mark.parametrize("device", DEVICES)
def test_batches_of_any_length(device):
    for length in (3, 1, 8, 2, 8):
        files = [encoded(smooth(16 + 8 * i, 24, seed=i), subsampling=0) for i in range(length)]
        for data, image in zip(files, decode(files, device), strict=True):
            assert differs(image, pixels(data)) <= ROUNDING


@pytest.mark.parametrize("device", DEVICES)
def test_a_bad_file_is_named(device, tmp_path):
    path = tmp_path / "broken.jpg"
    path.write_bytes(TRUNCATED)
    with pytest.raises(ValueError, match=r"broken\.jpg: .*on_error='skip'"):
        decode([GOOD, path], device)
    with pytest.raises(ValueError, match="sample 1: "):
        decode([GOOD, b"no image at all"], device)
    with pytest.raises(ValueError, match=r"nowhere\.jpg: "):
        decode([tmp_path / "nowhere.jpg"], device)


@pytest.mark.parametrize("device", DEVICES)
def test_bad_files_are_skipped_with_their_labels(device):
    samples = [(GOOD, 0), (TRUNCATED, 1), (GOOD, 2), (b"", 3)]
    wrapped = DataLoader(samples, batch_size=2, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(on_error="skip"), T.Resize((8, 8))])
    loader = fl.PrefetchLoader(wrapped, transform=transform, device=device)
    with pytest.warns(UserWarning, match="left out"):
        batches = [(images.shape, labels.tolist()) for images, labels in loader]
    assert batches == [((1, 3, 8, 8), [0]), ((1, 3, 8, 8), [2])]
    assert loader.stats.files["skipped"] == 2


def skipped(*samples, device, images=None, then=(), collate=None):
    """What a loader makes of one batch, in which bad files are skipped, and images are replaced by their shapes."""
    batches = [(collate or partial(fl.collate, images=images))(samples)]
    transform = T.Compose([T.DecodeJpeg(on_error="skip"), T.Resize((8, 8)), *then])
    with pytest.warns(UserWarning, match="left out"):
        [batch] = fl.PrefetchLoader(batches, transform=transform, device=device)
    return tree_map_only(torch.Tensor, lambda value: tuple(value.shape) if value.ndim > 1 else value.tolist(), batch)


@pytest.mark.parametrize("device", DEVICES)
def test_lists_of_fields_are_not_taken_for_lists_of_samples(device):
    assert skipped([GOOD, 0], [b"", 1], device=device) == [(1, 3, 8, 8), [0]]
    sizes = skipped({"image": b"", "size": (4, 5)}, {"image": GOOD, "size": (6, 7)}, device=device)["size"]
    assert sizes == [[6], [7]]
    views = skipped((GOOD, 0), (b"", 1), device=device, then=[T.MultiView([T.Resize((4, 4)), T.Resize((6, 6))])])
    assert views == ([(1, 3, 4, 4), (1, 3, 6, 6)], [0])


@pytest.mark.parametrize("device", DEVICES)
def test_lists_and_tuples_of_samples_lose_the_skipped_ones(device):
    def collate(samples):
        files, targets = zip(*samples, strict=True)
        return fl.collate(files), targets

    samples = [(b"", torch.zeros(2, 5)), (GOOD, torch.zeros(2, 6))]
    assert skipped(*samples, device=device) == ((1, 3, 8, 8), [(2, 6)])
    assert skipped(*samples, device=device, collate=collate) == ((1, 3, 8, 8), ((2, 6),))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_a_sample_with_one_bad_file_of_two_is_skipped(device, ahead):
    samples = [(b"", GOOD, 0), (GOOD, b"", 1), (GOOD, GOOD, 2), (GOOD, GOOD, 3)]
    batches = DataLoader(samples, batch_size=4, collate_fn=partial(fl.collate, images=[0, 1]))
    transform = T.Compose([T.DecodeJpeg(on_error="skip"), T.RandomResizedCrop((8, 8))])
    loader = fl.PrefetchLoader(batches if ahead else list(batches), transform=transform, device=device)
    with pytest.warns(UserWarning, match="left out"):
        [(one, other, labels)] = loader
    assert labels.tolist() == [2, 3]
    good = [(GOOD, GOOD, label) for label in range(4)]
    batches = DataLoader(good, batch_size=4, collate_fn=partial(fl.collate, images=[0, 1]))
    [(all_of_one, all_of_other, _)] = fl.PrefetchLoader(batches, transform=transform, device=device)
    # On a GPU the kernel sums in tiles, which the largest crop of a batch decides: a value may round to the next level.
    torch.testing.assert_close((one, other), (all_of_one[2:], all_of_other[2:]), atol=1, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_of_bad_files_is_left_out_whole(device):
    wrapped = DataLoader([(TRUNCATED, 0), (GOOD, 1)], batch_size=1, collate_fn=fl.collate)
    loader = fl.PrefetchLoader(wrapped, transform=T.DecodeJpeg(on_error="skip"), device=device)
    with pytest.warns(UserWarning, match="left out"):
        assert [labels.tolist() for _, labels in loader] == [[1]]


@pytest.mark.parametrize("device", DEVICES)
def test_where_all_files_of_a_batch_are_bad_it_is_said_how_to_name_the_images(device):
    said = r"All files of the batch are bad: fl\.collate\(images=\.\.\.\)"
    batches = [fl.collate([b"3", b"5"])]
    loader = fl.PrefetchLoader(batches, transform=T.DecodeJpeg(on_error="skip"), device=device)
    with pytest.warns(UserWarning, match=said):
        assert list(loader) == []
    with pytest.raises(ValueError, match=said):
        list(fl.PrefetchLoader(batches, transform=T.DecodeJpeg(), device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_bad_files_become_black_and_are_counted(device):
    wrapped = DataLoader([(GOOD, 0), (TRUNCATED, 1)], batch_size=2, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(on_error="zero"), T.Resize((8, 8))])
    loader = fl.PrefetchLoader(wrapped, transform=transform, device=device)
    with pytest.warns(UserWarning, match="black"):
        ((images, labels),) = loader
    assert labels.tolist() == [0, 1]
    assert images[0].any()
    assert not images[1].any()
    assert loader.stats.files["zeroed"] == 1


def test_what_is_no_file_is_refused():
    with pytest.raises(TypeError, match=r"collate_fn=fl\.collate"):
        T.DecodeJpeg()(torch.zeros(1, 3, 4, 4))
    with pytest.raises(TypeError, match=r"put T.DecodeJpeg\(\) first"):
        T.Resize((8, 8))(fl.collate([GOOD]))
    with pytest.raises(ValueError, match=r"on_error must be one of .*got 'ignore'"):
        T.DecodeJpeg(on_error="ignore")


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["nvjpeg", "torchcodec", "torchvision"])
def test_no_decoder_writes_to_memory_that_is_still_read(library, monkeypatch):
    """Outputs land where earlier tensors lay whose readers are still queued; the readers must see the old values."""
    if library != "nvjpeg":
        if library == "torchcodec":
            pytest.importorskip("torchcodec")
        monkeypatch.setattr(decoding, "engines", lambda _: None)
        chosen = torchvision_decode if library == "torchvision" else library_decoder.__wrapped__()
        monkeypatch.setattr(decoding, "library_decoder", lambda: chosen)
    elif decoding.engines(torch.device("cuda", 0)) is None:
        pytest.skip("this GPU has no JPEG engines")
    device = torch.device("cuda", 0)
    files = fl.collate([encoded(smooth(120, 160, seed=seed), subsampling=2) for seed in range(64)])
    files = files.pin_memory()
    decoding.decode(files, device)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(4):
            earlier = [torch.full((3 * 120 * 160,), 7, dtype=torch.uint8, device=device) for _ in range(64)]
            block = torch.full((64 * 3 * 120 * 160,), 7, dtype=torch.uint8, device=device)
            torch.cuda._sleep(200_000_000)
            sums = torch.stack([tensor.sum(dtype=torch.int64) for tensor in (*earlier, block)])
            expected = torch.tensor([tensor.numel() * 7 for tensor in (*earlier, block)])
            del earlier, block
            images, _, _ = decoding.decode(files, device)
            assert torch.equal(sums.cpu(), expected)
            del images


@pytest.mark.filterwarnings("ignore:::PIL", "ignore:files that cannot be decoded")
@pytest.mark.parametrize("on_error", ["raise", "skip", "zero"])
@pytest.mark.parametrize("device", DEVICES)
def test_mutated_files_are_reported_and_harm_no_neighbour(device, on_error, monkeypatch):
    """2,000 of them on a GPU: nothing crashes or hangs, and what Pillow refuses is reported, whatever the decoder."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2**20)
    rng = random.Random(f"{on_error}")
    originals = rng.choices(list(BASELINE.values()), k=2000 if device == "cuda" else 100)
    expected = pixels(GOOD)
    refused = 0
    for start in range(0, len(originals), 50):
        files = [each for data in originals[start : start + 50] for each in (mutated(data, rng), GOOD)]
        by_user = [by_pillow(data) for data in files]
        bad = [row for row, image in enumerate(by_user) if image is None]
        refused += len(bad)
        if on_error == "raise":
            with pytest.raises(T.BadImageError) as raised:
                decode(files, device)
            assert all((f"sample {row}: " in str(raised.value)) == (row in bad) for row in range(len(files)))
            continue
        images = decode(files, device, on_error=on_error)
        rows = [row for row in range(len(files)) if on_error == "zero" or row not in bad]
        assert len(images) == len(rows)
        for row, image in zip(rows, images, strict=True):
            if row in bad:
                assert not image.any()
            else:
                assert image.shape[1:] == by_user[row].shape[:2]
            if row % 2:
                assert differs(image, expected) <= ROUNDING
    assert len(originals) / 10 < refused < len(originals) * 9 / 10  # both ends are exercised


def test_files_are_decoded_without_a_loader_where_the_machine_can():
    images = T.Compose([T.DecodeJpeg(), T.Resize((4, 4))])(fl.collate([encoded()]))
    assert images.shape == (1, 3, 4, 4)
    assert images.is_cuda == torch.cuda.is_available()
