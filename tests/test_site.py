"""The site has every page of docs/, every public name, and a picture of what each transform does."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import fastload
from fastload import kernels, transforms
from fastload.transforms import Transform

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOT_ON_IT = {"README.md"}  # the list of pages; the site has its navigation
MADE = {"index.md", "gallery.md"}
MODULES = {"data", "kernels", "transforms"}
NO_PICTURE = {"Compose", "CutMix", "DecodeJpeg", "MixUp", "MixUpCutMix", "MultiView", "Normalize", "RandomApply"}
NO_PICTURE |= {"RandomChoice", "RandomGrayscale", "RandomOrder", "Transform"}


def test_each_page_is_in_the_navigation_once():
    linked = re.findall(r"(?::|-) ([\w/-]+\.md)$", (ROOT / ".mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - NOT_ON_IT
    assert sorted(linked) == sorted(pages | MADE)


@pytest.mark.parametrize("module", [fastload, transforms, kernels], ids=lambda module: module.__name__)
def test_each_public_name_is_in_the_api(module):
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    assert {f"{module.__name__}.{name}" for name in module.__all__ if name not in MODULES} <= shown


@pytest.mark.parametrize(
    ("module", "base", "not_used_alone"),
    [
        ("torchvision.transforms.v2", "Transform", {"Transform", "SetClampingMode"}),
        ("timm.data.transforms", "object", set()),
        ("albumentations", "BasicTransform", {"BasicTransform", "DualTransform", "ImageOnlyTransform", "Transform3D"}),
    ],
)
def test_coverage_has_each_transform_of_other_libraries(module, base, not_used_alone):
    library = pytest.importorskip(module)
    package, base = module.partition(".")[0], getattr(library, base, object)
    classes = {name: each for name, each in vars(library).items() if inspect.isclass(each)}
    theirs = {name for name, each in classes.items() if issubclass(each, base) and each.__module__.startswith(package)}
    named = set(re.findall(r"`(\w+)`", (DOCS / "coverage.md").read_text()))
    missing = theirs - not_used_alone - named
    assert len(missing) <= len(theirs) // 20, missing  # a new release of theirs may have a few more


def test_the_gallery_shows_each_transform_that_changes_an_image(monkeypatch):
    pytest.importorskip("skimage")
    monkeypatch.syspath_prepend(DOCS)
    examples = importlib.import_module("gallery").EXAMPLES
    shown = {example.partition("(")[0].removeprefix("T.") for group in examples.values() for example in group}
    public = {name: getattr(transforms, name) for name in transforms.__all__}
    assert shown == {name for name, value in public.items() if issubclass(value, Transform)} - NO_PICTURE
