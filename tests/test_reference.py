"""The site's reference lists every public name, once; its navigation every page."""

import importlib
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import nanode

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs/reference").glob("*.md"))
FOLDERS = ["stages", "bases", "trajectories", "fields", "solvers", "gradients", "transforms"]
FOLDERS += ["analysis", "models", "data", "training"]
FOLDERS += ["data.video", "models.video", "training.video"]

#: How often each name stands on a page, such as "nanode.Legendre" or "nanode.solvers.Grid".
LISTED = Counter(
    name
    for page in PAGES
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
)


def test_every_public_name_is_listed_once():
    missing = [name for name in nanode.__all__ if f"nanode.{name}" not in LISTED]
    assert not missing
    assert [name for name, times in LISTED.items() if times > 1] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_of_a_folder_is_listed_once(folder):
    module = importlib.import_module(f"nanode.{folder}")
    for name in module.__all__:
        # What users import from nanode itself stands under that name, and only there.
        public = getattr(nanode, name, None) is getattr(module, name)
        listed = {f"nanode.{name}", f"nanode.{folder}.{name}"} & LISTED.keys()
        assert listed == {f"nanode.{name}" if public else f"nanode.{folder}.{name}"}


def test_nothing_else_is_listed():
    for path in LISTED:
        folder, name = path.rsplit(".", 1)
        assert name in importlib.import_module(folder).__all__, path


def test_navigation_has_every_page_once():
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(_targets(site["project"]["nav"])) == sorted([*pages, "results/README.md"])


def _targets(part):
    """The files that a part of the navigation leads to."""
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [target for inner in parts for target in _targets(inner)]
