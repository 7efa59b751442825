"""A colour program's parts begin at the operations that need statistics."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fastload.kernels.spec import ColourProgram, Op
from tests.counts import examples

CODES = st.sampled_from([Op.NONE, Op.BRIGHTNESS, Op.INVERT, Op.CONTRAST, Op.AUTOCONTRAST])


@st.composite
def programs(draw):
    """Operations of some images, each with an amount of its own."""
    images, slots = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    codes = draw(st.lists(st.lists(CODES, min_size=slots, max_size=slots), min_size=images, max_size=images))
    amounts = torch.arange(images * slots, dtype=torch.float32).view(images, slots)
    return ColourProgram(torch.stack([torch.tensor(codes).float().view(images, slots), amounts], dim=2))


@examples(full=300, here=40)
@given(programs())
def test_parts_are_all_operations_and_begin_at_those_that_need_statistics(program):
    for image, operations in enumerate(program.ops.tolist()):
        first, *others = (program.of(image, part) for part in range(program.parts))
        assert sum(others, first) == list(map(tuple, operations))
        assert all(code < Op.CONTRAST for code, _ in first)
        for (code, _), *behind in filter(None, others):
            assert code >= Op.CONTRAST
            assert all(other < Op.CONTRAST for other, _ in behind)


@examples(full=300, here=40)
@given(programs(), st.integers(0, 7))
def test_a_program_knows_what_its_parts_need(program, part):
    operations = [program.of(image, part) for image in range(len(program.ops))]
    assert program.is_empty(part) == (not any(operations))
    assert program.needs_statistics(part) == any(code >= Op.CONTRAST for each in operations for code, _ in each)
