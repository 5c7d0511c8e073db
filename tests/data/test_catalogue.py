"""Data sets by name, and the folder that they are looked for in."""

import errno
import os
from pathlib import Path

import pytest
import torch

from nanode.data import SOURCES, DataError, catalogue, data_root, load, video
from nanode.data.source import Source
from tests.data.official import small_mnist


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CIFAR-10", "cifar10"),
        ("cifra100", "cifar100"),
        ("fashion_mnist", "fashion-mnist"),
        ("Digits", "digits"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"got {name!r}. Did you mean {near!r}"):
        load(name)


def test_a_name_near_nothing_lists_all():
    with pytest.raises(
        ValueError, match="data must be one of cifar10, cifar100, mnist, fashion-mnist, digits; got"
    ) as error:
        load("zzz")
    assert "Did you mean" not in str(error.value)


def test_the_root_is_the_option_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NANODE_DATA", str(tmp_path / "named"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "named"
    monkeypatch.setenv("NANODE_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "nanode"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root() == tmp_path / "home" / ".cache" / "nanode"
    assert data_root("~/here") == tmp_path / "home" / "here"


@pytest.fixture
def homeless(monkeypatch):
    """A user whom the system knows no home directory of, as in many containers."""
    for name in ("HOME", "NANODE_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)


def test_without_a_home_directory_another_root_is_asked_for(homeless):
    with pytest.raises(DataError, match=r"no home directory for .*nanode: name another data root"):
        load("mnist", download=False)


def test_without_a_home_directory_digits_are_there(homeless):
    assert len(load("digits").test) == 360
    assert video.load("moving-digits").train.size == 64


def test_the_home_directory_of_nobody():
    with pytest.raises(DataError, match=r"for ~nosuchuser/x: name another data root"):
        data_root("~nosuchuser/x")


def test_load_looks_where_the_variable_says(monkeypatch, tmp_path):
    small, contents = small_mnist()
    monkeypatch.setitem(SOURCES, "mnist", small)
    monkeypatch.setenv("NANODE_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for name, content in contents.items():
        (tmp_path / "mnist" / name).write_bytes(content)
    assert len(load("mnist", download=False).train) == 30


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"digits"}))
def test_without_files_or_downloads_the_message_names_the_file(name, tmp_path):
    with pytest.raises(DataError, match=r"\.gz is not in .*\nGet it from http") as error:
        load(name, tmp_path, download=False)
    assert str(tmp_path) in str(error.value)
    assert list(tmp_path.iterdir()) == []


class Refusing(Source):
    """Stands for a file system that says no."""

    name = "refusing"

    def __init__(self, error):
        self.error = error

    def load(self, root, download, progress):
        raise self.error


def test_no_permission(monkeypatch):
    error = PermissionError(errno.EACCES, "Permission denied", "/closed/root")
    monkeypatch.setitem(catalogue.SOURCES, "refusing", Refusing(error))
    with pytest.raises(DataError, match="no permission for /closed/root: name another data root"):
        load("refusing")


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() == 0, reason="root may do everything")
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_closed_folder(tmp_path, server, mode):
    root = tmp_path / "closed"
    root.mkdir(mode=mode)
    with pytest.raises(DataError, match="no permission for"):
        load("cifar10", root)


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="can't be used"):
        load("cifar10", tmp_path / "file" / "below")


# ---- digits


def test_digits_need_no_root(tmp_path):
    data = load("digits", tmp_path / "nowhere", download=False)
    assert data.shape == (1, 8, 8)
    counts = torch.bincount(data.train.labels) + torch.bincount(data.test.labels)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert torch.bincount(data.test.labels).tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    assert int(data.train.images.max()) == 255
    assert len(data.train.images.unique()) == 17
    assert not (tmp_path / "nowhere").exists()


def test_the_split_of_digits_never_changes():
    """Weighted sums of labels and pixels, noted when the split was made."""
    data = load("digits")
    weights = torch.arange(1, 361)
    assert int((data.test.labels * weights).sum()) == 292_617
    assert int((data.test.images.long().sum((1, 2, 3)) * weights).sum()) == 323_396_412


def test_digits_are_small_and_say_where_they_come_from():
    folder = Path(catalogue.__file__).parent
    assert (folder / "digits.npz").stat().st_size < 100 * 1024
    assert "CC BY 4.0" in (folder / "digits.txt").read_text(encoding="utf-8")
