"""The official test sequences of Moving MNIST: 10,000 of 20 frames, as published in 2015.

N. Srivastava, E. Mansimov, R. Salakhutdinov, Unsupervised Learning of Video Representations using
LSTMs. Made by the deterministic law of motion; the usual task is ten frames from ten.
"""

from pathlib import Path

import numpy as np
import torch

from nanode.data.download import obtain
from nanode.data.source import OfficialFile, Progress
from nanode.data.video.clips import StoredClips

SEQUENCES = OfficialFile(
    "mnist_test_seq.npy",
    size=819_200_096,
    md5="be083ec986bfe91a449d63653c411eb2",
    sha256="c2a3e8d3939c001ab77bf543f130157424efa486bb4d0974d2cebb773b13f8b3",
    urls=("http://www.cs.toronto.edu/~nitish/unsupervised_video/mnist_test_seq.npy",),
)
#: Where the file may be; a download goes to the first.
FOLDERS = ("moving-mnist", "MovingMNIST")


def load_official(
    root: Path, device: torch.device | str, download: bool, progress: Progress | None
) -> StoredClips:
    """The verified file, mapped; it is downloaded first if it is missing and that is allowed."""
    there = [root / name for name in FOLDERS if (root / name / SEQUENCES.name).exists()]
    folder = there[0] if there else root / FOLDERS[0]
    path = obtain(SEQUENCES, folder, download, progress)
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    # Frames come first in the file, and there are no channels.
    return StoredClips("moving-mnist-test test", mapped.swapaxes(0, 1)[:, :, None], device)
