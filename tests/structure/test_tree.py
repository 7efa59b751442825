"""A batch is taken apart and put together again: the same object if nothing changed, of the same types if it did."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from fastload.structure.tree import tree_flatten, tree_replace, tree_unflatten

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Sample:
    image: object
    label: object


leaves = st.one_of(
    st.integers(), st.text(max_size=3), st.none(), st.builds(lambda n: torch.tensor([n]), st.integers(0, 9))
)
keys = st.text("abc", min_size=1, max_size=2)
batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Pair, inner, inner),
        st.builds(Sample, inner, inner),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(UserDict),
    ),
    max_leaves=12,
)


@given(batches)
def test_a_batch_in_which_nothing_changed_is_the_same_object(batch):
    assert tree_unflatten(tree_flatten(batch)) is batch


@given(batches, st.data())
def test_a_leaf_is_replaced_at_its_path_and_nothing_else(batch, data):
    tree = tree_flatten(batch)
    if not tree.leaves:
        return
    path = data.draw(st.sampled_from(sorted(tree.leaves, key=str)))
    new = object()
    replaced = tree_replace(batch, {path: new})
    assert types(replaced) == types(tree_replace(batch, {path: 0}))
    after = tree_flatten(replaced).leaves
    assert list(after) == list(tree.leaves)
    assert all(after[other] is (new if other == path else leaf) for other, leaf in tree.leaves.items())
    assert all(now is then for now, then in zip(tree_flatten(batch).leaves.values(), tree.leaves.values(), strict=True))


def types(batch):
    """The type of every container, by its path."""
    return {path: type(value) for path, value in tree_flatten(batch).walk() if path not in tree_flatten(batch).leaves}


@given(batches)
def test_containers_come_before_what_they_hold(batch):
    seen = set()
    for path, _ in tree_flatten(batch).walk():
        assert path[:-1] in seen or path == ()
        seen.add(path)


def test_a_container_that_is_put_in_the_place_of_a_leaf_is_flattened_too():
    tree = tree_flatten({"files": "a.jpg", "labels": 3}).replaced({("files",): [1, 2]})
    assert tree.leaves == {("files", 0): 1, ("files", 1): 2, ("labels",): 3}
