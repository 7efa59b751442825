"""Where a data set keeps its transform, and a copy of it with another one."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.utils.data import ConcatDataset, Dataset

from fastload.offload.error import CannotOffloadError
from fastload.offload.hugging_face import is_of_hugging_face, place_in_hugging_face
from fastload.offload.opening import bad_files, opened_files, undecoded_jpegs
from fastload.offload.place import Place
from fastload.structure.loaded_types import loaded_types

__all__ = ["FileDataset", "containers_restored", "transform_of"]

NAMES = ("transform", "transforms")
CONTAINERS = (dict, list, set, OrderedDict, defaultdict)  # no others: copying them may cost much, or fail


def transform_of(dataset: Any, attribute: str = "dataset") -> Place:
    """Find the transform of a data set, or of the one that it is a part of.

    >>> class Squares(Dataset):
    ...     transform = abs
    >>> transform_of(Squares()).attribute
    'dataset.transform'

    Raises:
        CannotOffloadError: it has none, or several.
    """
    if isinstance(dataset, ConcatDataset):
        return _of_all(dataset, attribute)
    if is_of_hugging_face(dataset):
        return place_in_hugging_face(dataset, attribute)
    own = [name for name in NAMES if getattr(dataset, name, None) is not None]
    if own and isinstance(dataset, loaded_types("torchvision.datasets", "VisionDataset")):
        return _of_vision(dataset, attribute)
    if len(own) == 1:
        _require_plain(dataset, own[0], attribute)
        return Place(getattr(dataset, own[0]), f"{attribute}.{own[0]}", lambda new: _copy(dataset, **{own[0]: new}))
    if own:
        raise CannotOffloadError(
            f"{attribute} has a transform and transforms, and it cannot be told how they go together"
        )
    if (inner := getattr(dataset, "dataset", None)) is not None:
        place = transform_of(inner, f"{attribute}.dataset")
        return Place(place.transform, place.attribute, lambda new: _copy(dataset, dataset=place.with_other(new)))
    named = f"{attribute}, of type {type(dataset).__name__},"
    if any(hasattr(dataset, name) for name in NAMES):
        raise CannotOffloadError(f"the transform of {named} is None")
    raise CannotOffloadError(f"{named} has no attribute transform or transforms")


def _require_plain(dataset: Any, name: str, attribute: str) -> None:
    """Refuse a transform that is no attribute of the data set alone, or that the data set does not call."""
    if isinstance(getattr(type(dataset), name, None), property):
        raise CannotOffloadError(f"{attribute}.{name} is a property, which may change more than a copy of the data set")
    if not callable(getattr(dataset, name)):
        raise CannotOffloadError(f"{attribute}.{name} must be callable; got {getattr(dataset, name)!r}")


def _of_vision(dataset: Any, attribute: str) -> Place:
    """Of torchvision's: ``transform`` for the image and ``target_transform``, or ``transforms`` for both together."""
    own, joint = dataset.transform, dataset.transforms
    if joint is None:
        _require_plain(dataset, "transform", attribute)
        return Place(own, f"{attribute}.transform", lambda new: _copy(dataset, transform=new))
    is_standard = isinstance(joint, loaded_types("torchvision.datasets.vision", "StandardTransform"))
    if not is_standard and own is not None:
        raise CannotOffloadError(
            f"{attribute} has a transform and transforms, and it cannot be told how they go together"
        )
    if not is_standard:
        return Place(joint, f"{attribute}.transforms", lambda new: _copy(dataset, transforms=new))
    if own is None:  # it may have been taken away later: some data sets read this attribute, and others the joint one
        if joint.transform is not None:
            raise CannotOffloadError(f"{attribute}.transform is None, and {attribute}.transforms still has one")
        raise CannotOffloadError(f"{attribute} has a target_transform, and no transform of its images")

    def with_other(new: Any) -> Any:
        both = new if joint.transform is own else Earlier(attribute)  # where another was set later
        return _copy(dataset, transform=new, transforms=_copy(joint, transform=both))

    return Place(own, f"{attribute}.transform", with_other)


class Earlier:
    """In the place of a transform that may not be the one to move."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def __call__(self, _image: Any) -> Any:
        raise CannotOffloadError(
            f"the data set calls {self.attribute}.transforms, whose transform is another than {self.attribute}."
            "transform, which was set later: give both the same"
        )


def _of_all(dataset: Any, attribute: str) -> Place:
    places = [transform_of(part, f"{attribute}.datasets[{number}]") for number, part in enumerate(dataset.datasets)]
    other = next((place for place in places if place.transform is not places[0].transform), None)
    if other is not None:
        raise CannotOffloadError(
            f"{places[0].attribute} and {other.attribute} are two objects: give both data sets the same transform"
        )

    def with_other(new: Any) -> Any:
        return _copy(dataset, datasets=[place.with_other(new) for place in places])

    return Place(places[0].transform, places[0].attribute, with_other)


def _copy(original: Any, **attributes: Any) -> Any:
    changed = copy.copy(original)
    try:
        for name, value in attributes.items():
            setattr(changed, name, value)
    except AttributeError as error:  # of a frozen dataclass, for example
        raise CannotOffloadError(
            f"a copy of the data set cannot have another {' or '.join(attributes)}: {error}"
        ) from error
    return changed


@contextmanager
def containers_restored(dataset: Any) -> Iterator[None]:
    """Put back, at the end, what the lists, dicts and sets of a data set hold now, and those of the data sets in it.

    A data set may keep what it reads, in containers that it shares with the one of which it is a copy.
    """
    held = [(container, copy.copy(container)) for container in _containers(dataset)]
    try:
        yield
    finally:
        for container, before in held:
            _put_back(container, before)


def _put_back(container: Any, before: Any) -> None:
    """Give a container what it held, without emptying it: another pass may be reading the same data set."""
    if isinstance(container, list):
        container[:] = before
        return
    for new in [each for each in container if each not in before]:
        container.discard(new) if isinstance(container, set) else container.pop(new)
    container.update(before)


def _containers(dataset: Any) -> Iterator[Any]:
    attributes = getattr(dataset, "__dict__", {})
    yield from (value for value in attributes.values() if type(value) in CONTAINERS)
    inner = [attributes["dataset"]] if "dataset" in attributes else attributes.get("datasets", [])
    for each in inner:
        yield from _containers(each)


class FileDataset(Dataset[Any]):
    """A data set whose JPEG files stay undecoded where the data set would only have decoded them.

    Where it fails for a sample, it is asked for this again, with images that stand for bad files: a file that it only
    opens and converts is handed over then, and meets its error where files are decoded. Any other error is its own.

    Attributes:
        dataset: the data set. All other attributes are its own.
    """

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "dataset", dataset)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # copy and pickle ask for these before there is a data set
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        read = self.dataset.__getitem__
        return _despite_bad_files(read, index, again=read)

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """The samples of one batch, as PyTorch asks for them."""
        several = getattr(self.dataset, "__getitems__", None)
        if several is None:
            return [self[index] for index in indices]

        def one(index: Any) -> Any:
            return several([index])[0]

        def each(indices: list[Any]) -> list[Any]:
            return [_despite_bad_files(one, index, again=one) for index in indices]

        samples: list[Any] = _despite_bad_files(several, indices, again=each)
        return samples


def _despite_bad_files(read: Callable[[Any], Any], asked: Any, again: Callable[[Any], Any]) -> Any:
    """What ``read`` returns for what is asked; if it fails, what ``again`` does if it succeeds and met a bad file."""
    opened = opened_files()
    with undecoded_jpegs():
        try:
            return read(asked)
        except Exception as error:
            if opened_files() == opened:
                raise
            failure = error
    try:
        bad = bad_files()
        with suppress(Exception), undecoded_jpegs(bad=True):
            result = again(asked)
            if bad_files() > bad:
                return result
        raise failure
    finally:
        del failure  # its traceback holds this frame, and files that are open
