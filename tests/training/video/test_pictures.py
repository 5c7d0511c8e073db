"""Films: what their pixels show, and the files."""

import sys

import av
import numpy as np
import pytest
import torch
from PIL import Image

from nanode.training.video import generate, train_video
from nanode.training.video.evaluation import open_task
from nanode.training.video.generation import columns_of
from nanode.training.video.pictures import (
    BORDER,
    CAPTION,
    GAP,
    GREEN,
    RED,
    compose,
    write_film,
    writer,
)


def film(scale=1, channels=1):
    clips = torch.rand(2, 4, channels, 8, 8)
    return clips, compose({"truth": clips, "best": clips}, n_past=3, scale=scale)


def test_borders_are_green_while_given_and_red_when_predicted():
    _, pictures = film()
    side, top = 8 + 2 * BORDER + GAP, CAPTION + 4
    for t in range(4):
        for row in range(2):
            corner = pictures[t, top + row * side]
            assert tuple(corner[0]) == GREEN  # the truth is never predicted
            assert tuple(corner[side]) == (GREEN if t < 3 else RED)


@pytest.mark.parametrize("channels", [1, 3])
def test_frames_are_in_their_places(channels):
    clips, pictures = film(channels=channels)
    side, top = 8 + 2 * BORDER + GAP, CAPTION + 4
    assert pictures.shape == (4, top + 2 * side - GAP, 2 * side - GAP, 3)
    assert pictures.dtype == np.uint8
    y, x = top + side + BORDER, side + BORDER  # second clip, second column
    shown = pictures[2, y : y + 8, x : x + 8]
    expected = (clips[1, 2].expand(3, 8, 8) * 255).round().permute(1, 2, 0)
    assert np.array_equal(shown, expected.numpy().astype(np.uint8))


def test_scale_repeats_pixels():
    torch.manual_seed(0)
    _, small = film()
    torch.manual_seed(0)
    _, large = film(scale=3)
    top = CAPTION + 4
    assert np.array_equal(large[:, top::3, ::3], small[:, top:])


def test_a_gif_has_every_frame(tmp_path):
    _, pictures = film(scale=2)
    path = write_film(tmp_path / "deep" / "film.gif", pictures, fps=5)
    with Image.open(path) as picture:
        assert picture.n_frames == 4
        assert picture.size == (pictures.shape[2], pictures.shape[1])
        assert picture.info["duration"] == 200
        assert picture.info["loop"] == 0
        picture.seek(3)
        # The palette of a GIF moves colours a little.
        shown = np.asarray(picture.convert("RGB")).astype(int)
    assert np.abs(shown - pictures[3]).mean() < 8


def test_other_endings(tmp_path):
    with pytest.raises(ValueError, match=r".gif or .mp4, got 'film.avi'"):
        write_film(tmp_path / "film.avi", film()[1])
    with pytest.raises(ValueError, match=r".gif or .mp4, got 'film.avi'"):
        generate(tmp_path / "no run at all", tmp_path / "film.avi")
    assert list(tmp_path.iterdir()) == []


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"pip install nanode\[video\]"):
        film()


# ---- MP4


def test_without_pyav(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install nanode\[video\]; or write a .gif"):
        write_film(tmp_path / "film.mp4", film()[1])
    with pytest.raises(ImportError, match=r"or write a .gif"):  # before anything is sampled
        generate(tmp_path / "no run at all", tmp_path / "film.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_codec(monkeypatch):
    """Asked for before anything is sampled or written."""
    writer("film.mp4")
    monkeypatch.setattr("nanode.training.video.pictures.CODEC", "nonsense")
    with pytest.raises(ValueError, match=r"no codec nonsense for MP4.*write a .gif"):
        writer("film.mp4")


def test_an_mp4_shows_every_frame(tmp_path):
    clips = torch.linspace(0, 1, 4)[None, :, None, None, None].expand(1, 4, 1, 8, 8)
    pictures = compose({"truth": clips, "best": clips}, n_past=3, scale=3)
    assert pictures.shape[1] % 2 == 1
    path = write_film(tmp_path / "film.mp4", pictures, fps=5)
    with av.open(str(path)) as file:
        assert file.streams.video[0].average_rate == 5
        shown = [frame.to_ndarray(format="rgb24").astype(int) for frame in file.decode(video=0)]
    high, wide = (n + n % 2 for n in pictures.shape[1:3])
    assert [picture.shape for picture in shown] == [(high, wide, 3)] * 4
    side, top = 3 * (8 + 2 * BORDER + GAP), CAPTION + 4
    for t, picture in enumerate(shown):
        # The codec rounds brightness a little, and colours of neighbours more.
        assert picture[top + 15, side + 15] == pytest.approx([85 * t] * 3, abs=12)
        red, green, _ = picture[top + 1, side + 15]
        assert (green > red + 50) if t < 3 else (red > green + 50)


# ---- of a run


@pytest.fixture
def run(tmp_path, config, unmeasured):
    train_video(config, tmp_path / "run")
    return tmp_path / "run"


def test_a_film_of_a_run_is_decided_by_its_seed(run, tmp_path):
    def made(name, seed):
        path = tmp_path / name
        return generate(run, path, sequences=2, samples=4, shown=2, seed=seed).read_bytes()

    assert made("a.gif", 0) == made("b.gif", 0)
    assert made("a.gif", 0) != made("c.gif", 1)
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.n_frames == 8
        side = 16 + 2 * BORDER + GAP
        # Truth, posterior mean, best and two samples.
        assert picture.size[0] == 2 * (5 * side - GAP)


@pytest.mark.parametrize(("samples", "others"), [(1, 0), (3, 2), (9, 4)])
def test_other_samples_are_others(run, samples, others):
    columns = columns_of(open_task(run), sequences=3, samples=samples, shown=4)
    names = [f"sample {n + 1}" for n in range(others)]
    assert list(columns) == ["truth", "posterior", "best", *names]
    task, indices = open_task(run), torch.arange(3)
    made = task.generated(indices, task.truth(indices), samples)
    for clip in range(3):
        shown = [columns[name][clip] for name in ("best", *names)]
        # Each is another of the samples; batches of other sizes round otherwise.
        same = [[torch.allclose(a, b, atol=1e-6) for b in made[clip]] for a in shown]
        places = [row.index(True) for row in same]
        assert len(set(places)) == len(places) == 1 + others


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shown": -1}, "shown must be"),
        ({"sequences": 0}, "sequences must be"),
        ({"length": 40}, "too few for length = 40"),
    ],
)
def test_bad_input(run, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        generate(run, tmp_path / "film.gif", **options)
