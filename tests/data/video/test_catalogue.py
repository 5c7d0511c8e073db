"""Sets of clips by name."""

import io

import numpy as np
import pytest
import torch

from nanode.data import DataError
from nanode.data import catalogue as stills
from nanode.data import load as load_images
from nanode.data.video import SOURCES, Deterministic, Stochastic, load, official
from nanode.data.video.resize import enlarged
from tests.data.official import facts, small_mnist

LAWS = {
    "moving-digits": Stochastic,
    "moving-digits-deterministic": Deterministic,
    "moving-mnist": Stochastic,
    "moving-mnist-deterministic": Deterministic,
}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A data root with a short MNIST."""
    small, contents = small_mnist()
    monkeypatch.setitem(stills.SOURCES, "mnist", small)
    (tmp_path / "mnist").mkdir()
    for name, content in contents.items():
        (tmp_path / "mnist" / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_each_split_shows_its_own_digits(root, name, split):
    clips = getattr(load(name, root=root, download=False, digits=1), split)
    assert type(clips) is LAWS[name]
    assert clips.name == f"{name} {split}"
    assert (clips.channels, clips.size, clips.length) == (1, 64, None)
    source = "mnist" if "mnist" in name else "digits"
    images = getattr(load_images(source, root, download=False), split).images[:, 0]
    frames = clips.frames(torch.arange(20), 1)[:, 0, 0]
    which, corners = clips.paths(torch.arange(20), 1)
    for row, (y, x) in enumerate(corners[:, 0, 0].tolist()):
        seen = frames[row, y : y + clips.side, x : x + clips.side]
        expected = enlarged(images[which[row]], clips.side)[0]
        assert torch.equal((seen * 255).round(), expected.float())
        assert float(frames[row].sum()) == pytest.approx(float(seen.sum()))


def test_the_splits_have_streams_of_their_own():
    data = load("moving-digits")
    train, test = (clips.paths(torch.arange(50), 10)[1] for clips in (data.train, data.test))
    assert bool((train != test).flatten(1).any(1).all())


def test_options_reach_the_clips():
    data = load("moving-digits", digits=3, seed=4, train_sequences=70, test_sequences=7)
    assert (len(data.train), len(data.test)) == (70, 7)
    assert data.train.paths(torch.arange(2), 3)[1].shape == (2, 3, 3, 2)
    other = load("moving-digits", digits=3).train.frames(torch.arange(2), 3)
    assert not torch.equal(data.train.frames(torch.arange(2), 3), other)
    assert len(load("moving-digits").train) == 60_000


def test_moving_digits_need_no_root(tmp_path):
    load("moving-digits", root=tmp_path / "nowhere", download=False)
    assert [*tmp_path.iterdir()] == []


def test_mnist_missing(tmp_path):
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is not in"):
        load("moving-mnist", root=tmp_path, download=False)


@pytest.mark.parametrize(
    ("name", "near"), [("Moving-MNIST", "moving-mnist"), ("moving_digits", "moving-digits")]
)
def test_an_unknown_name_suggests_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"got {name!r}. Did you mean {near!r}"):
        load(name)


def test_a_name_near_nothing_lists_all():
    with pytest.raises(ValueError, match=f"data must be one of {', '.join(SOURCES)}; got"):
        load("zzz")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("moving-digits", "digits, seed, train_sequences, test_sequences"),
        ("moving-mnist-test", "seed, train_sequences"),
        ("bair", "view, cache"),
    ],
)
def test_an_unknown_option_lists_those_there_are(name, known):
    with pytest.raises(ValueError, match=f"{name} has no option 'colour', only {known}$"):
        load(name, colour=1)


@pytest.mark.parametrize("name", ["moving-mnist", "moving-mnist-test"])
def test_bad_counts_are_named_before_files_are_looked_for(tmp_path, name):
    with pytest.raises(ValueError, match=r"train_sequences must be .* at least 1, got 'abc'"):
        load(name, root=tmp_path, download=False, train_sequences="abc")


@pytest.mark.parametrize(
    "options", [{"test_sequences": "abc"}, {"seed": "x"}, {"digits": True}], ids=str
)
def test_bad_options(options):
    ((option, value),) = options.items()
    with pytest.raises(ValueError, match=rf"{option} must be a whole number of .*, got {value!r}"):
        load("moving-digits", **options)


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"can't be used|does not exist"):
        load("bair", root=tmp_path / "file" / "below")
    with pytest.raises(DataError, match="can't be used"):
        load("moving-mnist-test", root=tmp_path / "file" / "below")


# ---- the official test sequences


@pytest.fixture
def sequences(root, monkeypatch):
    """A file of the official layout with fewer sequences, and its bytes."""
    array = np.random.default_rng(0).integers(0, 256, (20, 7, 64, 64), dtype=np.uint8)
    out = io.BytesIO()
    np.save(out, array)
    content = out.getvalue()
    monkeypatch.setattr(official, "SEQUENCES", facts(official.SEQUENCES, content))
    return array, content


@pytest.mark.parametrize("folder", ["moving-mnist", "MovingMNIST"])
def test_the_official_file_is_mapped(root, sequences, folder):
    array, content = sequences
    (root / folder).mkdir()
    (root / folder / "mnist_test_seq.npy").write_bytes(content)
    data = load("moving-mnist-test", root=root, download=False, train_sequences=30)
    assert (len(data.test), data.test.length, data.test.channels) == (7, 20, 1)
    frames = data.test.frames(torch.tensor([6, 2]), 20)
    assert frames.shape == (2, 20, 1, 64, 64)
    seen = (frames * 255).round().to(torch.uint8)[:, :, 0].numpy()
    assert (seen == array[:, [6, 2]].swapaxes(0, 1)).all()
    assert isinstance(data.test._array.base, np.memmap)
    with pytest.raises(ValueError, match="has 20 frames a sequence, 21 were asked for"):
        data.test.frames(torch.tensor([0]), 21)
    # And trains on the law that made it.
    assert type(data.train) is Deterministic
    assert len(data.train) == 30
    same = load("moving-mnist-deterministic", root=root, download=False)
    assert torch.equal(*(one.train.frames(torch.arange(4), 5) for one in (data, same)))


def test_its_checksums_are_given_where_it_is_missing(root):
    with pytest.raises(DataError, match=r"mnist_test_seq\.npy is not in") as error:
        load("moving-mnist-test", root=root, download=False)
    for part in ("MD5 be083ec986bf", "SHA-256 c2a3e8d3939c", "NANODE_DATA"):
        assert part in str(error.value)


def test_it_is_downloaded_when_missing(root, sequences, server, monkeypatch):
    _, content = sequences
    server.files["sequences"] = content
    monkeypatch.setattr(
        official, "SEQUENCES", facts(official.SEQUENCES, content, (server.url("sequences"),))
    )
    assert len(load("moving-mnist-test", root=root).test) == 7
    assert (root / "moving-mnist" / "mnist_test_seq.npy").read_bytes() == content


@pytest.mark.parametrize("fault", ["size", "SHA-256"])
def test_another_file_is_refused(root, sequences, fault):
    _, content = sequences
    (root / "moving-mnist").mkdir()
    other = content[:-1] if fault == "size" else content[:-1] + bytes([content[-1] ^ 1])
    (root / "moving-mnist" / "mnist_test_seq.npy").write_bytes(other)
    with pytest.raises(DataError, match=r"not the official mnist_test_seq\.npy: expected"):
        load("moving-mnist-test", root=root)


def test_the_published_facts():
    """10,000 sequences of 20 frames behind the 96 bytes of an old .npy header."""
    file = official.SEQUENCES
    assert file.size == 20 * 10_000 * 64 * 64 + 96
    assert file.sha256 == "c2a3e8d3939c001ab77bf543f130157424efa486bb4d0974d2cebb773b13f8b3"
