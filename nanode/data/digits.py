"""Handwritten digits that come with the package, so that everything runs without a network."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import torch

from nanode.data.images import ImageData, Images, channel_statistics
from nanode.data.source import Progress, Source
from nanode.data.strata import stratified

TEST = 360
SPLIT_SEED = 0


@final
@dataclass(frozen=True)
class Digits(Source):
    """1,797 images of 8×8 pixels, of which 360 are for testing.

    The test set of *Optical Recognition of Handwritten Digits* by E. Alpaydin and C. Kaynak (UCI
    Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), as in scikit-learn;
    ``digits.txt`` beside this file says more. Pixels of 0..16 are scaled to bytes. The split is by
    image, not by writer, so test accuracy says nothing about new writers.

    >>> from nanode.data import load
    >>> load("digits").test
    Images(digits test: 360 of 1×8×8, on cpu)
    """

    name: str = "digits"
    embedded: ClassVar[bool] = True

    def load(self, root: Path, download: bool, progress: Progress | None) -> ImageData:
        """Read the embedded file; root and network are not used."""
        with (
            files("nanode.data").joinpath("digits.npz").open("rb") as file,
            np.load(file, allow_pickle=False) as stored,
        ):
            pixels, labels = stored["images"].astype(np.int64), stored["labels"].astype(np.int64)
        images = torch.from_numpy((pixels * 255 + 8) // 16).to(torch.uint8)[:, None]
        targets = torch.from_numpy(labels)
        tested = torch.zeros(len(targets), dtype=torch.bool, device="cpu")
        tested[stratified(targets, TEST, SPLIT_SEED)] = True
        classes = tuple("0123456789")
        mean, std = channel_statistics(images[~tested])
        train = Images("digits train", images[~tested], targets[~tested], classes, mean, std)
        test = Images("digits test", images[tested], targets[tested], classes, mean, std)
        return ImageData(self.name, train, test)


DIGITS = Digits()
