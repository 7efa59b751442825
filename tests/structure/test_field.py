"""A user says which field is meant: by a key, a path, an index, a list of these, or a function."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest

from fastload.structure.field import checked_rule, find_fields

Pair = namedtuple("Pair", ["image", "label"])


@dataclass
class Sample:
    image: object
    label: int


DEEP = {"image": {"bytes": b"", "path": None}, "views": [b"left", b"right"]}


@pytest.mark.parametrize(
    ("holder", "rule", "paths"),
    [
        (DEEP, "image", [("image",)]),
        (DEEP, ("image", "bytes"), [("image", "bytes")]),
        (DEEP, [("views", 0), ("views", -1)], [("views", 0), ("views", 1)]),
        (UserDict(DEEP), "views", [("views",)]),
        ((1, 2, 3), -1, [(2,)]),
        ({-1: "a key"}, -1, [(-1,)]),
        (Pair(b"", 3), "image", [(0,)]),
        (Pair(b"", 3), 1, [(1,)]),
        (Sample(b"", 3), "image", [("image",)]),
        (DEEP, lambda holder: holder["image"]["bytes"], [("image", "bytes")]),
        (DEEP, lambda holder: holder["views"], [("views",)]),
        (DEEP, lambda holder: [holder["views"][1], holder["image"]], [("views", 1), ("image",)]),
    ],
)
def test_a_field_is_found(holder, rule, paths):
    assert find_fields(holder, checked_rule("images", rule)) == paths


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("picture", "there is no 'picture' in what has 'image', 'views'"),
        (("image", "jpg"), "there is no 'jpg' in what has 'bytes', 'path'"),
        (("views", 2), "there is no 2 in what has 0, 1"),
        (("image", "bytes", 0), "there is no 0 in it"),
        (lambda holder: holder["image"]["bytes"] + b"new", "it returns bytes, which is no field"),
    ],
)
def test_what_is_not_there_is_said(rule, said):
    with pytest.raises(LookupError) as caught:
        find_fields(DEEP, rule)
    assert caught.value.args[0] == said
