"""Clips in arrays, and what every kind of clips refuses."""

import numpy as np
import pytest
import torch

from nanode.data import DataError
from nanode.data.video import StoredClips, VideoData, load


def stored(shape=(5, 6, 3, 8, 8)):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_bytes_become_fractions():
    array = stored()
    frames = StoredClips("mine", array).frames(torch.tensor([3, 0, 3]), 4)
    # Float32: relative 2⁻²⁴ from the quotient in double precision, and once more.
    assert np.abs(frames.numpy() - array[[3, 0, 3], :4] / 255).max() < 2e-7
    assert frames.dtype == torch.float32
    assert frames.is_contiguous()


def test_all_bytes_stay_in_range_and_come_back():
    array = np.arange(256, dtype=np.uint8).reshape(1, 1, 1, 16, 16)
    frames = StoredClips("all", array).frames(torch.tensor([0]), 1)
    assert (float(frames.min()), float(frames.max())) == (0, 1)
    assert torch.equal((frames * 255).round().flatten(), torch.arange(256.0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_fractions_stay(dtype):
    array = (stored() / 255).astype(dtype)
    frames = StoredClips("mine", array).frames(torch.arange(5), 6)
    assert torch.equal(frames, torch.from_numpy(array.astype(np.float32)))


def test_a_view_with_moved_axes():
    array = stored((5, 6, 8, 8, 3))
    frames = StoredClips("mine", array.transpose(0, 1, 4, 2, 3)).frames(torch.tensor([2]), 6)
    assert frames.shape == (1, 6, 3, 8, 8)
    assert frames.is_contiguous()
    assert float(frames[0, 4, 2, 7, 1]) == pytest.approx(array[2, 4, 7, 1, 2] / 255)


def test_facts():
    clips = StoredClips("mine", stored())
    assert (len(clips), clips.length, clips.channels, clips.size) == (5, 6, 3, 8)
    assert repr(clips) == "StoredClips(mine: 5 of 6 frames of 3×8×8, on cpu)"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((1, 2, 1, 8, 8), 1.5), "frames from 0 to 1, got 1.5 to 1.5: scale them"),
        (np.full((1, 2, 1, 8, 8), -0.1), "got -0.1 to -0.1"),
        (np.full((1, 2, 1, 8, 8), np.nan), "got nan to nan"),
        (np.zeros((1, 2, 1, 8, 8), np.int64), "bytes .uint8. or floating point, got int64"),
        (np.zeros((1, 2, 1, 7, 7), np.uint8), "even side, got 7×7: crop or resize"),
        (np.zeros((1, 2, 1, 8, 6), np.uint8), "square frames of an even side, got 8×6"),
        (np.zeros((2, 1, 8, 8), np.uint8), r"\(N, T, C, H, W\).*got \(2, 1, 8, 8\)"),
        (np.zeros((0, 2, 1, 8, 8), np.uint8), "something in it"),
        (np.zeros((3, 0, 1, 8, 8), np.uint8), "something in it"),
    ],
)
def test_arrays_that_are_no_clips(array, message):
    with pytest.raises(DataError, match=f"^mine: .*{message}"):
        StoredClips("mine", array)


@pytest.mark.parametrize(
    ("indices", "length", "message"),
    [
        ([0], 7, "mine has 6 frames a sequence, 7 were asked for: take fewer past and future"),
        ([0], 0, "at least 1 frame, got 0"),
        ([5], 1, "indices from 0 to 4, got 5"),
        ([1, -1], 1, "indices from 0 to 4, got -1"),
        ([0.5], 1, r"int64 of shape \(N,\), got torch.float32"),
        ([[0]], 1, r"got torch.int64 of shape \(1, 1\)"),
    ],
)
def test_requests_that_can_t_be_met(indices, length, message):
    with pytest.raises(ValueError, match=message):
        StoredClips("mine", stored()).frames(torch.tensor(indices), length)


def test_generated_clips_check_too():
    clips = load("moving-digits").train
    with pytest.raises(ValueError, match="int64"):
        clips.frames(torch.tensor([1], dtype=torch.int32), 3)
    with pytest.raises(ValueError, match="at least 1 frame"):
        clips.frames(torch.tensor([1]), 0)


def test_both_splits_have_the_same_frames():
    one, other = StoredClips("one", stored()), StoredClips("other", stored((5, 6, 1, 8, 8)))
    with pytest.raises(DataError, match=r"mixed: .*\(3, 8\) to train on and \(1, 8\) to test on"):
        VideoData("mixed", one, other)


@pytest.mark.gpu
def test_a_gpu_gets_the_same_bits():
    array = stored((5, 6, 8, 8, 3)).transpose(0, 1, 4, 2, 3)
    expected = StoredClips("mine", array).frames(torch.arange(5), 6)
    frames = StoredClips("mine", array, "cuda").frames(torch.arange(5).cuda(), 6)
    assert frames.is_cuda
    assert frames.is_contiguous()
    assert torch.equal(frames.cpu(), expected)
