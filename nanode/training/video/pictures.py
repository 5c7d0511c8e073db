"""Clips side by side as a moving picture: GIF by Pillow, MP4 by PyAV."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanode.training.files import write_atomically

GREEN, RED = (0, 170, 0), (220, 0, 0)
BORDER, GAP, CAPTION = 1, 2, 9
CODEC = "libx264"

#: Pictures (T, height, width, 3), bytes.
Film = NDArray[np.uint8]


def compose(columns: Mapping[str, Tensor], n_past: int, scale: int = 2) -> Film:
    """One column for each named set of clips (N, T, C, H, W) in [0, 1], one row for each clip.

    Frames have a green border where they were given and a red one where they were predicted; the
    column called ``truth`` is green throughout.
    """
    drawn = [
        _column(clips, n_past if name != "truth" else clips.shape[1])
        for name, clips in columns.items()
    ]
    film = torch.cat(drawn, dim=3)[..., :-GAP, :-GAP]  # (T, 3, height, width)
    film = film.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
    pictures: Film = (film.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().numpy()
    return _captioned(pictures, list(columns))


def _column(clips: Tensor, given: int) -> Tensor:
    """Clips below each other, (T, 3, height, width), each frame with its border."""
    count, times, channels, height, width = clips.shape
    high, wide = height + 2 * BORDER, width + 2 * BORDER
    film = clips.new_zeros(times, 3, count, high + GAP, wide + GAP)
    for t in range(times):
        colour = clips.new_tensor(GREEN if t < given else RED) / 255
        film[t, :, :, :high, :wide] = colour[:, None, None, None]
    frames = clips.clamp(0, 1).expand(-1, -1, 3, -1, -1) if channels == 1 else clips.clamp(0, 1)
    film[:, :, :, BORDER : BORDER + height, BORDER : BORDER + width] = frames.permute(1, 2, 0, 3, 4)
    return film.flatten(2, 3)


def _captioned(pictures: Film, names: list[str]) -> Film:
    """The pictures with the columns' names above them."""
    times, _, width, _ = pictures.shape
    image = _pillow("Image")
    band = image.new("RGB", (width, CAPTION + 4))
    draw = _pillow("ImageDraw").Draw(band)
    for n, name in enumerate(names):
        draw.text((2 + n * width // len(names), 0), name)
    above = np.broadcast_to(np.asarray(band), (times, *np.asarray(band).shape))
    return np.concatenate([above, pictures], axis=1)


def write_film(path: str | Path, film: Film, fps: int = 8) -> Path:
    """Write a film as GIF or MP4, as the ending of ``path`` says."""
    path, write = Path(path), writer(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda half: write(half, film, fps))
    return path


def writer(path: str | Path) -> Callable[[Path, Film, int], None]:
    """What writes a film of that ending; an error if what it needs isn't there."""
    writers = {".gif": _gif, ".mp4": _mp4}
    ending = Path(path).suffix.lower()
    if ending not in writers:
        raise ValueError(f"a film is written as .gif or .mp4, got {Path(path).name!r}")
    _pillow("Image")  # the captions' too
    if ending == ".mp4":
        _pyav()
    return writers[ending]


def _gif(path: Path, film: Film, fps: int) -> None:
    first, *others = (_pillow("Image").fromarray(picture) for picture in film)
    first.save(
        path,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=round(1000 / fps),
        loop=0,
    )


def _pillow(name: str) -> Any:
    try:
        return import_module(f"PIL.{name}")
    except ImportError as why:
        raise ImportError("films need Pillow: pip install nanode[video]") from why


def _pyav() -> Any:
    """PyAV, if it can write films."""
    try:
        av = import_module("av")
    except ImportError as why:
        raise ImportError(
            "MP4 needs PyAV: pip install nanode[video]; or write a .gif, which needs Pillow only"
        ) from why
    if CODEC not in av.codecs_available:
        raise ValueError(
            f"this build of PyAV has no codec {CODEC} for MP4; install PyAV from PyPI, whose "
            "wheels have it, or write a .gif"
        )
    return av


def _mp4(path: Path, film: Film, fps: int) -> None:
    av = _pyav()
    # Colour is stored for pairs of pixels.
    _, height, width, _ = film.shape
    film = np.pad(film, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
    with av.open(str(path), "w", format="mp4") as file:
        stream = file.add_stream(CODEC, rate=fps)
        stream.height, stream.width, stream.pix_fmt = film.shape[1], film.shape[2], "yuv420p"
        for picture in film:
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
