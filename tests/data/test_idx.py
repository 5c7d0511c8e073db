"""MNIST and Fashion-MNIST from idx files, compressed or not."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
import torch

from nanode.data import DataError
from nanode.data.idx import FASHION_MNIST, MNIST, read_idx
from tests.data.official import facts, idx_of, small_mnist


def put(folder, contents):
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("source", [MNIST, FASHION_MNIST], ids=lambda source: source.name)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("place", [0, 1])
def test_published_layouts_are_used_as_they_are(tmp_path, source, plain, place):
    small, contents = small_mnist(source=source)
    if plain:
        contents = {
            name.removesuffix(".gz"): gzip.decompress(content) for name, content in contents.items()
        }
    put(tmp_path / source.folders[place], contents)
    data = small.load(tmp_path, False, None)
    generator = np.random.default_rng(0)
    expected = generator.integers(0, 256, (30, 28, 28))
    assert torch.equal(data.train.images[:, 0].long(), torch.from_numpy(expected))
    assert torch.equal(data.test.labels, torch.arange(20) % 10)
    assert data.shape == (1, 28, 28)


def test_constants_as_published():
    """Mean and deviation as others give them, and the names of Fashion-MNIST's page."""
    close = {"abs": 5e-5}
    assert (*MNIST.mean, *MNIST.std) == pytest.approx((0.1307, 0.3081), **close)
    assert (*FASHION_MNIST.mean, *FASHION_MNIST.std) == pytest.approx((0.2860, 0.3530), **close)
    names = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
    assert FASHION_MNIST.classes == tuple(names.split(", "))


def test_the_official_file_is_preferred_to_an_unpacked_one(tmp_path):
    """Which may have been cut after room was made for it: zeros, of the right size."""
    small, contents = small_mnist()
    cut = {}
    for name, content in contents.items():
        plain = gzip.decompress(content)
        cut[name.removesuffix(".gz")] = plain[:20] + bytes(len(plain) - 20)
    put(tmp_path / "MNIST/raw", contents | cut)
    data = small.load(tmp_path, False, None)
    assert (data.train.images.flatten(1).sum(1) > 0).all()


def test_missing_files_are_downloaded(tmp_path, server):
    small, contents = small_mnist()
    server.files = dict(contents)
    put(tmp_path / "mnist", {"train-images-idx3-ubyte.gz": contents["train-images-idx3-ubyte.gz"]})
    files = [replace(file, urls=(server.url(file.name),)) for file in small.files]
    assert len(replace(small, files=tuple(files)).load(tmp_path, True, None).train) == 30
    assert len(server.ranges) == 3
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(contents)


def test_a_tampered_file_is_refused(tmp_path):
    small, contents = small_mnist()
    put(tmp_path / "mnist", contents | {"t10k-labels-idx1-ubyte.gz": b"x" * 60})
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is not the official"):
        small.load(tmp_path, False, None)


def test_a_label_out_of_range_is_named(tmp_path):
    small, contents = small_mnist()
    labels = gzip.compress(idx_of(np.full(20, 10)))
    files = (*small.files[:3], facts(small.files[3], labels))
    put(tmp_path / "mnist", contents | {"t10k-labels-idx1-ubyte.gz": labels})
    with pytest.raises(DataError, match="record 0 has label 10, expected 0 to 9"):
        replace(small, files=files).load(tmp_path, False, None)


VALUES = np.arange(12).reshape(3, 2, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_of(VALUES)[:-1], "expected 28 bytes, found 27"),
        (idx_of(VALUES) + b"x", "expected 28 bytes, found more"),
        (idx_of(VALUES.reshape(2, 3, 2)), "00 00 00 03 00 00 00 02 00 00 00 02, found"),
        (b"\0\0\x0d" + idx_of(VALUES)[3:], "not an idx file of bytes"),
    ],
    ids=["short", "long", "shape", "type"],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bad_files_are_named(tmp_path, content, message, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(DataError, match=message):
        read_idx(path, (3, 2, 2))


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(idx_of(VALUES))[:-12]], ids=["no", "cut"]
)
def test_damaged_compression(tmp_path, content):
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"file\.gz is damaged"):
        read_idx(tmp_path / "file.gz", (3, 2, 2))
