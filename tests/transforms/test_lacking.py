"""Torchvision's transforms that are not here: the error says what to do instead."""

import inspect

import pytest
from torchvision.transforms import v2

from fastload import transforms as T
from fastload.transforms.lacking import SUBSTITUTES

TYPES = {"AutoAugmentPolicy", "InterpolationMode", "SetClampingMode"}  # beside transforms


def transforms_of_torchvision():
    return {name for name, value in vars(v2).items() if inspect.isclass(value) and name[0].isupper()} - TYPES


def test_each_transform_of_torchvision_is_here_or_has_a_substitute():
    assert not transforms_of_torchvision() - set(T.__all__) - set(SUBSTITUTES)
    assert not set(SUBSTITUTES) & set(T.__all__)


@pytest.mark.parametrize("name", sorted(SUBSTITUTES))
def test_the_error_names_the_substitute(name):
    with pytest.raises(AttributeError, match=f"^fastload.transforms has no {name}: ") as caught:
        getattr(T, name)
    assert "{" not in str(caught.value)


def test_what_nobody_has_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'RandomFoo'"):
        T.RandomFoo  # noqa: B018
    assert not hasattr(T, "RandomFoo")
