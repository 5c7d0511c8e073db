"""BAIR: the official layout, read bit for bit, copied once, and refused where it is damaged."""

import os
import shutil
import time

import numpy as np
import pytest
import torch

from nanode.data import DataError
from nanode.data.download import STALE
from nanode.data.video import bair, load
from nanode.data.video.bair import open_split, read_images
from tests.data.video.writer import clip, example, features_of, frame

RECORD = 741_610
LAYOUT = {  # the seeds of the clips in each file
    "train/traj_0_to_1.tfrecords": (0, 1),
    "train/traj_10_to_10.tfrecords": (2,),
    "test/traj_0_to_0.tfrecords": (3,),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("official")
    for name, seeds in LAYOUT.items():
        path = root / "softmotion30_44k" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(frame(example(features_of(*clip(seed)))) for seed in seeds))
    return root


@pytest.fixture
def root(written, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(written, tmp_path / "root")
    return tmp_path / "root"


def train_file(root):
    return root / "softmotion30_44k/train/traj_0_to_1.tfrecords"


def images(seed, view="aux1"):
    main, aux1, _, _ = clip(seed)
    return aux1 if view == "aux1" else main


def as_bytes(frames):
    return (frames * 255).round().to(torch.uint8).permute(0, 1, 3, 4, 2).numpy()


def copied(root, **options):
    """The clips, asked for frames: copies are made then."""
    data = load("bair", root=root, **options)
    for clips in (data.train, data.test):
        clips.frames(torch.tensor([0]), 1)
    return data


def test_a_record_has_the_official_size(written):
    assert train_file(written).stat().st_size == 2 * RECORD
    assert bair.PAYLOAD == RECORD - 16
    assert len(open_split(train_file(written).parent)[0]) == 2


@pytest.mark.parametrize("view", ["aux1", "main"])
def test_clips_come_back_bit_for_bit(root, view):
    data = load("bair", root=root, view=view)
    frames = data.train.frames(torch.tensor([2, 0, 1]), 30)
    assert (as_bytes(frames) == np.stack([images(seed, view) for seed in (2, 0, 1)])).all()
    frames = data.test.frames(torch.tensor([0]), 12)
    assert (as_bytes(frames)[0] == images(3, view)[:12]).all()
    assert (data.train.channels, data.train.size, data.train.length) == (3, 64, 30)
    assert (len(data.train), len(data.test)) == (3, 1)


def test_files_are_in_the_order_of_their_numbers(root):
    """10 comes after 0 and before 256, whatever the alphabet says."""
    folder = root / "softmotion30_44k/train"
    (folder / "traj_10_to_10.tfrecords").rename(folder / "traj_256_to_256.tfrecords")
    (folder / "traj_0_to_1.tfrecords").rename(folder / "traj_1000_to_1001.tfrecords")
    frames = load("bair", root=root).train.frames(torch.arange(3), 1)
    assert (as_bytes(frames)[:, 0] == np.stack([images(seed)[0] for seed in (2, 0, 1)])).all()


@pytest.mark.skipif("NANODE_BAIR_CLIP" not in os.environ, reason="needs a real clip")
@pytest.mark.parametrize("view", ["aux1", "main"])
def test_a_real_clip_comes_back_bit_for_bit(tmp_path, view):
    """``NANODE_BAIR_CLIP`` names an npz file: image_main and image_aux1, 30 frames; action."""
    with np.load(os.environ["NANODE_BAIR_CLIP"]) as real:
        given = real["image_main"], real["image_aux1"], real["action"], np.zeros((30, 3))
    for split in ("train", "test"):
        path = tmp_path / "softmotion30_44k" / split / "traj_0_to_0.tfrecords"
        path.parent.mkdir(parents=True)
        path.write_bytes(frame(example(features_of(*given))))
        assert path.stat().st_size == RECORD
    frames = load("bair", root=tmp_path, view=view).train.frames(torch.tensor([0]), 30)
    assert (as_bytes(frames)[0] == given[view == "aux1"]).all()


# ---- the copy


def copies(root):
    return sorted(path.name for path in (root / "softmotion30_44k").glob("*.*"))


def test_it_is_made_once(root, monkeypatch):
    seen = []
    copied(root, progress=lambda *report: seen.append(report))
    first, second = copies(root)
    assert first.startswith("test.aux1.")
    assert second.startswith("train.aux1.")
    total = 3 * 30 * 64 * 64 * 3
    assert seen[2] == (second, total, total)
    monkeypatch.setattr(bair, "read_images", None)
    assert len(copied(root).train) == 3


def test_it_is_made_of_the_split_that_frames_are_asked_of(root):
    data = load("bair", root=root)
    assert (len(data.train), data.train.length, copies(root)) == (3, 30, [])
    data.test.frames(torch.tensor([0]), 2)
    assert [name.split(".")[0] for name in copies(root)] == ["test"]


def test_other_records_make_another(root):
    copied(root)
    (root / "softmotion30_44k/train/traj_10_to_10.tfrecords").unlink()
    assert len(copied(root).train) == 2


def test_records_put_in_their_place_later_make_another(root):
    before = load("bair", root=root).train.frames(torch.arange(1), 2)
    path = root / "softmotion30_44k/train/traj_10_to_10.tfrecords"
    first = root / "softmotion30_44k/train/traj_0_to_1.tfrecords"
    content = first.read_bytes()
    record = path.read_bytes()
    first.write_bytes(2 * record)
    after = load("bair", root=root).train.frames(torch.arange(1), 2)
    assert not torch.equal(before, after)
    first.write_bytes(content)
    assert torch.equal(load("bair", root=root).train.frames(torch.arange(1), 2), before)


def test_it_can_be_elsewhere(root, tmp_path):
    copied(root, cache=tmp_path / "new" / "cache")
    assert copies(root) == []
    assert len([*(tmp_path / "new" / "cache").iterdir()]) == 2


def test_an_interrupted_one_leaves_nothing(root):
    def stop(*report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(root, progress=stop)
    assert copies(root) == []


def test_what_a_killed_process_left_is_removed_once_it_is_still(root):
    copied(root)
    _, whole = copies(root)
    folder = root / "softmotion30_44k"
    (folder / whole).unlink()
    old, new = folder / f"{whole}.1-0000.part", folder / f"{whole}.2-0000.part"
    for part in (old, new):
        part.write_bytes(b"x")
    still = time.time() - 2 * STALE
    os.utime(old, (still, still))
    copied(root)
    assert (old.exists(), new.exists()) == (False, True)  # another process may be at work


def test_one_that_can_t_be_written(root, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"1,105,920 bytes .*could not be made: .*option cache"):
        copied(root, cache=tmp_path / "file")


@pytest.mark.parametrize("left", [200, 50, 0])
def test_a_cut_one_is_refused(root, left):
    copied(root)
    (copy,) = (root / "softmotion30_44k").glob("train.*")
    copy.write_bytes(copy.read_bytes()[:left])
    with pytest.raises(DataError, match=r"train\.aux1\..*\.npy is damaged.*Remove it"):
        copied(root)


def test_another_array_in_its_place_is_refused(root):
    copied(root)
    (copy,) = (root / "softmotion30_44k").glob("train.*")
    np.save(copy, np.zeros((3, 30, 64, 64), np.uint8))
    with pytest.raises(DataError, match=r"expected bytes of shape \(3, 30, 64, 64, 3\)"):
        copied(root)


# ---- bad input


def test_a_flipped_byte_is_refused_and_no_copy_is_left(root):
    path = train_file(root)
    with path.open("r+b") as file:
        file.seek(RECORD + 400_000)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(DataError, match=r"traj_0_to_1\.tfrecords .*offset 741,610 .*CRC"):
        copied(root)
    assert copies(root) == []


def test_a_truncated_file_is_refused(root):
    path = train_file(root)
    path.write_bytes(path.read_bytes()[: RECORD + 300_000])
    message = r"traj_0_to_1\.tfrecords .*offset 741,610 .*ends after 300,000 of its 741,610 bytes"
    with pytest.raises(DataError, match=message):
        load("bair", root=root)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("traj_0_to_2", "it holds 2 records, its name promises 3"),
        ("traj_0_to_0", "it holds 2 records, its name promises 1"),
        ("traj_5_to_3", "its name counts backwards"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(root, name, message):
    path = train_file(root)
    path.rename(path.with_stem(name))
    with pytest.raises(DataError, match=rf"{name}\.tfrecords is not usable: {message}"):
        load("bair", root=root)


def test_a_trajectory_in_two_files_is_refused(root):
    path = train_file(root)
    shutil.copy(path, path.with_stem("traj_1_to_2"))
    with pytest.raises(DataError, match=r"traj_1_to_2\.tfrecords is not usable: .* trajectory 1 "):
        load("bair", root=root)


def test_a_wrong_record_size_is_refused(root):
    train_file(root).write_bytes(frame(example(features_of(*clip(0, frames=12)))) * 2)
    with pytest.raises(DataError, match=r"traj_0_to_1\.tfrecords .*offset 0 .*wrong record size"):
        load("bair", root=root)


def rewritten(root, change):
    """The training file with one record of the right size and other contents."""
    payload = change(features_of(*clip(0)))
    assert len(payload) == bair.PAYLOAD
    path = train_file(root)
    path = path.rename(path.with_stem("traj_0_to_0"))
    path.write_bytes(frame(payload))
    return open_split(path.parent)[0]


def other_key(features):
    features["7/image_auxx/encoded"] = features.pop("7/image_aux1/encoded")
    return example(features)


def other_sizes(features):
    features["3/image_aux1/encoded"] = bytes(12_287)
    features["4/image_aux1/encoded"] = bytes(12_289)
    return example(features)


def other_kind(features):
    return b"\xff" * bair.PAYLOAD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_key, "it has no 7/image_aux1/encoded, expected frames 0 to 29"),
        (other_sizes, r"3/image_aux1/encoded has 12,287 bytes, expected 12,288 \(64×64 RGB\)"),
        (other_kind, "not a tf.train.Example, a number does not end"),
    ],
)
def test_records_with_other_contents_are_refused(root, change, message):
    with pytest.raises(DataError, match=rf"traj_0_to_0\.tfrecords .*offset 0 .*{message}"):
        read_images(rewritten(root, change), 0, "aux1")


def test_an_empty_record_folder(root):
    folder = root / "softmotion30_44k/test"
    (folder / "traj_0_to_0.tfrecords").rename(folder / "other.tfrecords")
    with pytest.raises(DataError, match=r"test holds no traj_A_to_B.tfrecords") as error:
        load("bair", root=root)
    for part in ("32,274,964,480 bytes", "c6f8d164ab2b", f"-C {root}", "NANODE_DATA"):
        assert part in str(error.value)


def test_a_missing_split_is_named_before_the_other_is_copied(root):
    shutil.rmtree(root / "softmotion30_44k/test")
    with pytest.raises(DataError, match="test does not exist"):
        load("bair", root=root)
    assert copies(root) == []


def test_no_record_folder(tmp_path):
    with pytest.raises(DataError, match=r"train does not exist\.\nGet http"):
        load("bair", root=tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_more_frames_than_there_are(root):
    with pytest.raises(ValueError, match="bair train has 30 frames a sequence, 32 were asked for"):
        load("bair", root=root).train.frames(torch.tensor([0]), 32)


def test_an_unknown_view(root):
    with pytest.raises(ValueError, match="view must be one of aux1, main; got 'top'"):
        load("bair", root=root, view="top")
