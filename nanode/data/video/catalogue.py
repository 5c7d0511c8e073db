"""Every set of clips by its name."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from nanode.data import catalogue as stills
from nanode.data.source import Progress, data_root
from nanode.data.video.bair import View, load_bair
from nanode.data.video.clips import VideoData
from nanode.data.video.moving import Deterministic, Moving, Stochastic
from nanode.data.video.official import load_official
from nanode.values import check_choice, checked_count


@final
@dataclass(frozen=True)
class Place:
    """Where files are, where frames go, and whether files may be fetched."""

    root: Path
    device: torch.device
    download: bool
    progress: Progress | None


@final
@dataclass(frozen=True)
class Generated:
    """Digits of the images called ``source``, moved by a law."""

    name: str
    law: type[Moving]
    source: str

    def __call__(
        self,
        place: Place,
        *,
        digits: int = 2,
        seed: int = 0,
        train_sequences: int = 60_000,
        test_sequences: int = 10_000,
    ) -> VideoData:
        """Training digits in one split, test digits in the other, each with its own stream."""
        checked_count("train_sequences", train_sequences, least=1)
        checked_count("test_sequences", test_sequences, least=1)
        data = stills.load(
            self.source, place.root, download=place.download, progress=place.progress
        )
        train, test = (
            self.law(
                f"{self.name} {split}",
                images.images[:, 0],
                count=count,
                digits=digits,
                seed=seed,
                device=place.device,
            )
            for split, images, count in (
                ("train", data.train, train_sequences),
                ("test", data.test, test_sequences),
            )
        )
        return VideoData(self.name, train, test)


def _official(place: Place, *, seed: int = 0, train_sequences: int = 60_000) -> VideoData:
    """The official test sequences, and to train on the law that made them."""
    # The options are checked here, before 800 MB are.
    train = DETERMINISTIC_MNIST(place, seed=seed, train_sequences=train_sequences).train
    test = load_official(place.root, place.device, place.download, place.progress)
    return VideoData("moving-mnist-test", train, test)


def _bair(
    place: Place, *, view: View = "aux1", cache: str | os.PathLike[str] | None = None
) -> VideoData:
    return load_bair(place.root, place.device, view=view, cache=cache, progress=place.progress)


DETERMINISTIC_MNIST = Generated("moving-mnist-deterministic", Deterministic, "mnist")

SOURCES: dict[str, Callable[..., VideoData]] = {
    "moving-digits": Generated("moving-digits", Stochastic, "digits"),
    "moving-digits-deterministic": Generated(
        "moving-digits-deterministic", Deterministic, "digits"
    ),
    "moving-mnist": Generated("moving-mnist", Stochastic, "mnist"),
    "moving-mnist-deterministic": DETERMINISTIC_MNIST,
    "moving-mnist-test": _official,
    "bair": _bair,
}


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    download: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> VideoData:
    """The clips called ``name``, whose frames will be made on or sent to ``device``.

    Files are looked for as ``nanode.data.load`` does, and MNIST's are downloaded if missing.
    BAIR's 32 GB never are: without them, the error says what to put where.

    - ``moving-digits``: embedded digits, stochastic; needs no file.
    - ``moving-mnist``: MNIST, stochastic.
    - ``…-deterministic``: either, deterministic.
    - ``moving-mnist-test``: the official test file; trains on ``moving-mnist-deterministic``.
    - ``bair``: robot pushing, from record files.

    Options of what is generated: ``digits`` (2) in a sequence, ``seed``, ``train_sequences`` and
    ``test_sequences`` in an epoch (60,000 and 10,000). Of ``bair``: ``view`` (``"aux1"`` or
    ``"main"``), ``cache``, a folder for the mapped copies.

    >>> load("moving-digits", train_sequences=1000, digits=3).train
    Stochastic(moving-digits train: 1,000 of any number of frames of 1×64×64, on cpu)
    """
    check_choice("data", name, SOURCES)
    known = [*inspect.signature(SOURCES[name]).parameters][1:]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}, only {', '.join(known)}")
    made = SOURCES[name]
    embedded = isinstance(made, Generated) and stills.SOURCES[made.source].embedded
    folder = Path() if embedded else data_root(root)
    with stills.usable(folder):
        return SOURCES[name](Place(folder, torch.device(device), download, progress), **options)
