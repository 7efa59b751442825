"""Batches come through the transfer as they were: values, types, strides, sharing; in few blocks of memory."""

from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors

from fastload.data.collate import collate
from fastload.decode.cpu import decode_on_cpu
from fastload.streams import SyncStream, side_stream
from fastload.structure.tree import tree_flatten, tree_unflatten
from fastload.transfer.packing import ALIGNMENT, FEW, SMALL, PackedBlock, plan_copies
from fastload.transfer.pinned import StagingPool
from fastload.transfer.transfer import Transfer, device_blocks
from tests.files import OTHERS, jpeg

# On the CPU the blocks are the host's own; how batches are packed and made again does not depend on where they lie.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

Pair = namedtuple("Pair", "first second")


def sent(batch, device):
    """A batch whose leaves were moved to a device, and the memory that it takes there."""
    device = torch.device(device, 0) if device == "cuda" else torch.device(device)
    tree = tree_flatten(batch)
    with torch.no_grad():
        leaves = Transfer(side_stream(device), pack=True).move(tree.leaves)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return SimpleNamespace(batch=tree_unflatten(tree.replaced(leaves)), memory=device_blocks(leaves.values()))


def movables_of(batch):
    return list(tree_flatten(batch).movables.values())


def plain(tensor):
    return tensor.as_subclass(torch.Tensor)


def is_dense(tensor):
    """Whether its elements fill the memory from the first to the last, each once."""
    step = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


def assert_same(moved, tensor, device):
    becomes_plain = isinstance(tensor, torch.nn.Parameter) and device != "cpu"  # as by its own `to`
    assert type(moved) is (torch.Tensor if becomes_plain else type(tensor))
    assert (moved.device.type, moved.dtype, moved.shape) == (device, tensor.dtype, tensor.shape)
    assert moved.layout == tensor.layout
    back, there = plain(moved).cpu(), plain(tensor).detach()
    if tensor.layout is not torch.strided:
        back, there = back.to_dense(), there.to_dense()
    assert torch.equal(back.resolve_conj().resolve_neg(), there.resolve_conj().resolve_neg())
    if isinstance(tensor, tv_tensors.TVTensor):
        assert vars(moved) == vars(tensor)


DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16]
DTYPES += [torch.float32, torch.float64, torch.complex64, torch.complex128]


@st.composite
def ordinary(draw):
    """Any shape, zero-size and 0-dimensional included, now and then a large one."""
    shape = draw(st.one_of(st.lists(st.integers(0, 5), max_size=4), st.just([300, 301])))
    return torch.randint(0, 2, shape).to(draw(st.sampled_from(DTYPES))).mul(draw(st.sampled_from([1, 3])))


@st.composite
def laid_out_otherwise(draw):
    tensor = draw(ordinary())
    if tensor.ndim == 0:
        return tensor.expand(3)
    ways = [
        tensor.movedim(0, -1),
        tensor[..., ::2],
        tensor.repeat(9, *[1] * (tensor.ndim - 1))[::9],
        tensor[None].expand(4, *tensor.shape),
        tensor[1:],
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ]
    return draw(st.sampled_from(ways))


@st.composite
def typed(draw):
    boxes = torch.rand(draw(st.integers(0, 3)), 4)
    return draw(
        st.sampled_from(
            [
                tv_tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=(7, 9)),
                tv_tensors.Mask(torch.randint(0, 2, (2, 7, 9), dtype=torch.uint8)),
                tv_tensors.Image(torch.randint(0, 256, (3, 200, 200), dtype=torch.uint8)),
            ]
        )
    )


def more_than_bytes():
    numbers = torch.rand(5, dtype=torch.complex64)
    return st.sampled_from(
        [
            numbers.conj(),
            numbers.conj().imag,
            torch.nn.Parameter(torch.rand(3)),
            torch.rand(2, 2, requires_grad=True),
        ]
    )


@st.composite
def sharing(draw):
    """Views of one storage: some with bytes in common, some not."""
    whole = torch.arange(draw(st.sampled_from([60, 40_000])), dtype=draw(st.sampled_from([torch.int16, torch.float64])))
    half = len(whole) // 2
    views = [whole, whole, whole[1:], whole[:half], whole[half:], whole[3::7], whole.view(2, -1).T]
    views.append(whole.view(torch.uint8)[8:])
    return draw(st.lists(st.sampled_from(views), min_size=2, max_size=5))


LEAVES = st.one_of(ordinary(), laid_out_otherwise(), typed(), more_than_bytes(), st.just("name"), st.none(), st.just(7))
BATCHES = st.recursive(
    st.one_of(LEAVES, sharing()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner).map(lambda both: Pair(*both)),
        st.dictionaries(st.sampled_from("abc"), inner),
        st.lists(st.tuples(st.sampled_from("xyz"), inner), max_size=2).map(OrderedDict),
    ),
    max_leaves=12,
)


def assert_alike(moved, batch):
    """The same containers with the same names in them, and whatever is no tensor."""
    assert isinstance(moved, torch.Tensor) or type(moved) is type(batch)
    if isinstance(batch, dict):
        assert list(moved) == list(batch)
        moved, batch = list(moved.values()), list(batch.values())
    if isinstance(batch, list | tuple):
        for one, other in zip(moved, batch, strict=True):
            assert_alike(one, other)
    elif not isinstance(batch, torch.Tensor):
        assert moved is batch


def is_its_bytes(tensor):
    return not (tensor.is_conj() or tensor.is_neg() or isinstance(tensor, torch.nn.Parameter))


def spans(tensors):
    """Of each that has bytes, and is no more than these: from where in its storage to where."""
    found = {}
    for number, tensor in enumerate(map(plain, tensors)):
        if is_its_bytes(tensors[number]) and tensor.numel():
            steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
            found[number] = (tensor.data_ptr(), tensor.data_ptr() + tensor.itemsize * (1 + steps))
    return found


def common_bytes(spans):
    return [
        (one, other)
        for one in spans
        for other in spans
        if one < other and spans[one][0] < spans[other][1] and spans[other][0] < spans[one][1]
    ]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(batch=BATCHES)
def test_any_batch_comes_through_intact(device, batch):
    moved = sent(batch, device).batch
    assert_alike(moved, batch)
    before, after = movables_of(batch), movables_of(moved)
    for new, old in zip(after, before, strict=True):
        assert_same(new, old, device)
        if is_dense(old):
            assert new.stride() == old.stride()

    lay, lie = spans(before), spans(after)
    shared = common_bytes(lay)
    alone = set(lay) - {number for pair in shared for number in pair}
    assert [number for number in alone if plain(after[number]).data_ptr() % ALIGNMENT] == []
    for one, other in shared:
        assert lie[one][0] - lie[other][0] == lay[one][0] - lay[other][0]
    assert [pair for pair in common_bytes(lie) if pair not in shared] == []


def detection_batch():
    """As of two images, the second with no object."""
    targets = [
        {"boxes": torch.rand(count, 4), "labels": torch.arange(count), "image_id": torch.tensor(count)}
        for count in (3, 0)
    ]
    return [torch.rand(3, 100, 120), torch.rand(3, 110, 90)], targets


@pytest.mark.parametrize("device", DEVICES)
def test_whoever_keeps_small_tensors_keeps_no_image(device):
    (images, targets) = sent(detection_batch(), device).batch
    kept = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in movables_of(targets)}
    assert len(kept) == 1
    assert sum(kept.values()) < SMALL
    assert [image.untyped_storage().nbytes() for image in images] == [image.nbytes for image in images]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_written_to_one_tensor_does_not_touch_the_gradients_of_another(device):
    weights, scale = sent([torch.rand(3), torch.rand(3)], device).batch
    x = torch.ones(3, device=device, requires_grad=True)
    loss = (x * weights).sum()
    scale.mul_(2)
    loss.backward()
    assert torch.equal(x.grad, weights)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_share_memory_share_it_still(device):
    whole = torch.zeros(6)
    left, right, again = sent([whole[:4], whole[2:], whole], device).batch
    left[3] = 7
    assert (right[1], again[3]) == (7, 7)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_of_different_types_share_memory_still(device):
    numbers = torch.arange(8, dtype=torch.int32)
    narrow, wide = sent([numbers[1:], numbers[2:].view(torch.int64)], device).batch
    wide[0] = 0
    assert narrow.tolist() == [1, 0, 0, 4, 5, 6, 7]


@pytest.mark.parametrize("device", DEVICES)
def test_little_of_a_large_storage_is_copied_alone(device):
    table = torch.rand(20_000, 50)
    (column,) = sent([table[:, 7]], device).batch
    assert torch.equal(column.cpu(), table[:, 7])
    assert column.untyped_storage().nbytes() <= 2 * column.nbytes


@pytest.mark.gpu
def test_a_few_dense_pinned_tensors_are_not_worth_packing():
    def packed(tensors):
        found = list(plan_copies(tensors))
        packed = [number for each in found if isinstance(each, PackedBlock) for number, _ in each.numbered]
        assert len(packed) + sum(not isinstance(each, PackedBlock) for each in found) == len(tensors)
        return packed

    numbers, few = torch.arange(9).pin_memory(), torch.ones(2).pin_memory()
    assert packed([numbers, few]) == []
    assert packed([few] + [torch.zeros(1).pin_memory() for _ in range(FEW)]) == list(range(FEW + 1))
    assert packed([few, torch.zeros(SMALL).pin_memory(), torch.ones(2)]) == [0, 2]
    assert packed([numbers[:5], numbers[3:]]) == [0, 1]  # which would no longer share
    assert packed([numbers[::2]]) == [0]  # which has gaps


@pytest.mark.gpu
def test_the_allocator_is_told_of_blocks_not_of_tensors():
    images, targets = detection_batch()
    assert len(sent((images, targets), "cuda").memory) == len(images) + 1


@pytest.mark.gpu
def test_what_is_on_the_device_already_stays_where_it_is():
    there = torch.rand(5, device="cuda")
    first, second, sparse = sent([there, torch.rand(5), torch.eye(3).to_sparse()], "cuda").batch
    assert first is there
    assert second.is_cuda
    assert sparse.device.type == "cpu"  # only the consumer may move it


@pytest.mark.gpu
def test_large_pinned_tensors_are_copied_from_where_they_lie():
    images = [torch.rand(3, 500, 500).pin_memory().movedim(0, -1) for _ in range(4)]
    torch.cuda.synchronize()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    for moved, image in zip(sent(images, "cuda").batch, images, strict=True):
        assert torch.equal(moved.cpu(), image)
        assert moved.stride() == image.stride()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - before < images[0].nbytes


@pytest.mark.gpu
def test_pinned_blocks_are_filled_again_only_when_the_device_has_read_them():
    side = side_stream(torch.device("cuda", 0))
    transfer = Transfer(side)
    torch.cuda.synchronize()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    with torch.cuda.stream(side._stream):
        torch.cuda._sleep(200_000_000)
        batches = [{(0,): torch.full((5,), n), (1,): torch.full((200_000,), n)} for n in range(20)]
        moved = [tuple(transfer.move(leaves).values()) for leaves in batches]
    torch.cuda.synchronize()
    after = torch.cuda.host_memory_stats()["allocated_bytes.current"]  # reading a result pins a byte more
    assert after - before <= StagingPool.MOST * 2**21
    for number, (small, large) in enumerate(moved):
        assert (small == number).all()
        assert (large == number).all()


class Reading:
    """A device that is told when it has read."""

    def __init__(self, *, has_read=False):
        self.has_read = has_read

    def passed(self):
        return self.has_read

    def wait(self):
        self.has_read = True


def test_a_block_that_is_being_read_is_not_used_again():
    pool, reading = StagingPool(), Reading()
    block = pool.acquire(100)
    pool.release(block, reading)
    assert pool.acquire(100) is not block
    assert not reading.has_read
    reading.has_read = True
    assert pool.acquire(100) is block


def test_a_pool_has_no_more_blocks_than_it_may():
    pool, readings, blocks = StagingPool(), [], set()
    for _ in range(10):
        block = pool.acquire(100)
        blocks.add(block.data_ptr())
        readings.append(Reading())
        pool.release(block, readings[-1])
        del block
    assert len(blocks) == StagingPool.MOST
    assert [reading.has_read for reading in readings] == [True] * 8 + [False] * 2


def test_reserved_blocks_are_taken_with_the_first():
    pool = StagingPool(reserve=3)
    first = pool.acquire(100_000)
    reserved = [block.data_ptr() for block, _ in pool._blocks]
    assert [pool.acquire(100_000).data_ptr() for _ in range(2)] == reserved
    assert len(reserved) == 2
    assert first.data_ptr() not in reserved


def test_a_pool_makes_do_with_fewer_blocks_where_memory_lacks():
    class Small(StagingPool):
        left = 1

        def _new(self, size):
            if not self.left:
                raise RuntimeError("out of memory")
            self.left -= 1
            return super()._new(size)

    pool = Small(reserve=3)
    for _ in range(3):
        pool.release(pool.acquire(100), Reading(has_read=True))
    with pytest.raises(RuntimeError, match="out of memory"):
        [pool.acquire(100) for _ in range(2)]


def test_images_decoded_on_the_cpu_keep_their_pixels_when_the_files_memory_is_used_again():
    transfer = Transfer(SyncStream(torch.device("cpu")), pack=True)
    with transfer.pinned(collate([OTHERS["PNG"], jpeg(7, 9)])) as files:
        images, _ = decode_on_cpu(files)
    expected = [image.clone() for image in images]
    transfer.pin(collate([b"no image", OTHERS["WebP"], OTHERS["WebP"]])).files.block.fill_(7)
    assert all(torch.equal(image, right) for image, right in zip(images, expected, strict=True))


def test_blocks_grow_to_what_is_needed():
    pool = StagingPool()
    for size in (10, 100_000, 3, 1_000_000):
        block = pool.acquire(size)
        assert len(block) >= size
        pool.release(block, Reading(has_read=True))
    assert pool.acquire(1) is block
