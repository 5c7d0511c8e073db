"""CIFAR from archives in the official layout; names and records are those of the real files."""

import os
import shutil
import tarfile
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from nanode.data import DataError
from nanode.data.cifar import CIFAR10, CIFAR100
from nanode.data.extract import extract
from tests.data.official import SETS, cifar_archive, facts, small_cifar, tar_of


@pytest.fixture(params=SETS)
def cifar(request):
    return small_cifar(SETS[request.param])


def put(root, folder, files):
    (root / folder).mkdir()
    for name, content in files.items():
        (root / folder / name).write_bytes(content)


def test_records_are_read_as_written(cifar, tmp_path):
    source, files = cifar
    put(tmp_path, source.folder, files)
    data = source.load(tmp_path, False, None)
    assert len(data.train) == 20 * len(source.train)
    assert len(data.test) == 20
    classes = len(source.classes)
    for number in range(len(source.train)):
        rows = data.train.images[20 * number : 20 * (number + 1)].long()
        value = torch.arange(20) + number
        assert torch.equal(data.train.labels[20 * number : 20 * (number + 1)], value % classes)
        expected = (value[:, None] + torch.arange(3))[:, :, None, None].expand(-1, -1, 32, 32)
        assert torch.equal(rows, expected)
    assert torch.equal(data.test.labels, (torch.arange(20) + len(source.train)) % classes)


def test_the_archive_is_downloaded_and_unpacked(cifar, server, tmp_path):
    source, content = cifar_archive(*cifar)
    server.files["a"] = content
    source = replace(source, archive=replace(source.archive, urls=(server.url("a"),)))
    root = tmp_path / "root"
    first = source.load(root, True, None)
    assert sorted(path.name for path in root.iterdir()) == sorted(
        [source.archive.name, source.folder]
    )
    assert not (root / source.folder / "readme.html").exists()
    again = source.load(root, False, None)
    assert torch.equal(first.train.images, again.train.images)
    assert server.ranges == [None]


def test_a_missing_batch_is_unpacked_beside_the_others(cifar, tmp_path):
    source, content = cifar_archive(*cifar)
    (tmp_path / source.archive.name).write_bytes(content)
    source.load(tmp_path, False, None)
    name = next(iter(source.test))
    (tmp_path / source.folder / name).unlink()
    assert len(source.load(tmp_path, False, None).test) == 20


def test_a_missing_batch_is_named_where_there_is_no_archive(cifar, tmp_path):
    source, files = cifar
    put(tmp_path, source.folder, files)
    gone = f"{source.folder}/{next(iter(source.test))}"
    (tmp_path / gone).unlink()
    with pytest.raises(DataError, match=rf"lacks {gone}\.\n{source.archive.name} is not in"):
        source.load(tmp_path, False, None)
    shutil.rmtree(tmp_path / source.folder)
    with pytest.raises(DataError, match=rf"^{source.archive.name} is not in"):
        source.load(tmp_path, False, None)


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: content[::-1]])
def test_a_truncated_or_tampered_archive_leaves_nothing(cifar, tmp_path, damage):
    source, content = cifar_archive(*cifar)
    (tmp_path / source.archive.name).write_bytes(damage(content))
    with pytest.raises(DataError, match=rf"{source.archive.name} is not the official"):
        source.load(tmp_path, False, None)
    assert [path.name for path in tmp_path.iterdir()] == [source.archive.name]


def test_a_wrong_size_batch_is_named(cifar, tmp_path):
    source, files = cifar
    name = next(iter(source.test))
    put(tmp_path, source.folder, files | {name: files[name][:-1]})
    size = len(files[name])
    with pytest.raises(
        DataError, match=rf"{name} has a wrong size: expected {size:,} bytes, found {size - 1:,}"
    ):
        source.load(tmp_path, False, None)


def test_a_label_out_of_range_is_named(cifar, tmp_path):
    source, files = cifar
    name = next(iter(source.test))
    content = bytearray(files[name])
    content[7 * (source.label_bytes + 3072) + source.label_bytes - 1] = len(source.classes)
    put(tmp_path, source.folder, files | {name: bytes(content)})
    with pytest.raises(DataError, match=rf"{name} is damaged: record 7 has label"):
        source.load(tmp_path, False, None)


def test_zeros_where_a_copy_broke_off_are_noticed(tmp_path):
    """They would be images of the first class."""
    source, files = small_cifar(CIFAR10)
    name = list(source.train)[-1]
    half = len(files[name]) // 2
    put(
        tmp_path, source.folder, files | {name: files[name][:half] + bytes(len(files[name]) - half)}
    )
    with pytest.raises(DataError, match=r"damaged: classes have 9 to 19 of 100 images"):
        source.load(tmp_path, False, None)


def test_the_official_sizes(tmp_path):
    """The whole of CIFAR-10 in its real layout, 184 MB, from an archive of zeros and labels."""
    rows = np.zeros((10_000, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(10_000) % 10
    batch = rows.tobytes()
    assert len(batch) == 30_730_000
    content = tar_of(
        {f"cifar-10-batches-bin/{name}": batch for name in {**CIFAR10.train, **CIFAR10.test}}
    )
    source = replace(CIFAR10, archive=facts(CIFAR10.archive, content))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    data = source.load(tmp_path, False, None)
    shutil.rmtree(tmp_path / source.folder)
    assert data.train.images.shape == (50_000, 3, 32, 32)
    assert data.test.images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(data.train.labels).tolist() == [5_000] * 10


def test_the_sets_as_published():
    # In the order of batches.meta.txt.
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    assert CIFAR10.classes == tuple(names.split())
    assert len(set(CIFAR100.classes)) == 100
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)
    assert sum(CIFAR10.train.values()) == sum(CIFAR100.train.values()) == 50_000
    assert sum(CIFAR10.test.values()) == sum(CIFAR100.test.values()) == 10_000


def test_constants_as_published():
    """Sizes and checksums of the archives by their pages; statistics as others found them."""
    ten, hundred = CIFAR10.archive, CIFAR100.archive
    assert (ten.size, ten.md5) == (170_052_171, "c32a1d4ab5d03f1284b67883e8d87530")
    assert ten.sha256 == "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    assert (hundred.size, hundred.md5) == (168_513_733, "03b5dce01913d631647c71ecec9e9cb8")
    # Four digits, which is what is usually given.
    close = {"abs": 5e-5}
    assert CIFAR10.mean == pytest.approx((0.4914, 0.4822, 0.4465), **close)
    assert CIFAR10.std == pytest.approx((0.2470, 0.2435, 0.2616), **close)
    assert CIFAR100.mean == pytest.approx((0.5071, 0.4865, 0.4409), **close)
    assert CIFAR100.std == pytest.approx((0.2673, 0.2564, 0.2762), **close)


# ---- extraction


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_no_path_of_the_archive_is_used(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(
        tar_of({"../evil": b"x", "/evil": b"x", "d/b": link("d/b", "/etc"), "d/a": b"abc"})
    )
    extract(tmp_path / "a.tar.gz", {"d/a": 3}, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "a.tar.gz", "out"]
    assert (tmp_path / "out" / "a").read_bytes() == b"abc"


def test_what_a_killed_process_left_is_removed(tmp_path):
    """Once it is still for long: another process may be at work."""
    (tmp_path / "a.tar.gz").write_bytes(tar_of({"d/a": b"abc"}))
    old, new = tmp_path / ".out.old.unpacking", tmp_path / ".out.new.unpacking"
    for scratch in (old, new):
        scratch.mkdir()
        (scratch / "0").write_bytes(b"a")
    for path in (old / "0", old):
        os.utime(path, (time.time() - 1000,) * 2)
    extract(tmp_path / "a.tar.gz", {"d/a": 3}, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, "a.tar.gz", "out"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"d/a": b"ab", "d/b": b"b"}, "expected d/a with 3 bytes, found 2"),
        ({"d/a": b"abc"}, "it lacks d/b"),
        ({"d/a": b"abc", "d/b": link("d/b", "/etc")}, "it lacks d/b"),
    ],
)
def test_all_or_nothing(tmp_path, members, message):
    (tmp_path / "a.tar.gz").write_bytes(tar_of(members))
    with pytest.raises(DataError, match=message):
        extract(tmp_path / "a.tar.gz", {"d/a": 3, "d/b": 1}, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


NOISE = np.random.default_rng(0).bytes(5000)  # which compression can't shorten


@pytest.mark.parametrize(
    "content", [b"no archive", tar_of({"d/a": NOISE})[:-2500]], ids=["no", "cut"]
)
def test_a_damaged_archive(tmp_path, content):
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar\.gz is damaged"):
        extract(tmp_path / "a.tar.gz", {"d/a": 5000, "d/b": 1}, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
