from typing import NamedTuple

import pytest

from nanode.cli import main


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def nanode(capsys):
    """Gives a command in this process; returns its exit status and what it printed."""

    def call(*tokens):
        capsys.readouterr()
        status = main([str(token) for token in tokens])
        return Answer(status, *capsys.readouterr())

    return call


#: A run of ten steps, about half a second.
QUICK = """
data: digits
model: t-nanode-2
preset: tiny
options: {steps: 2}
epochs: 1
batch_size: 128
average: 0.9
calibration: 2
device: cpu
progress: false
"""


@pytest.fixture
def quick(tmp_path):
    """A configuration as a file, in a folder of its own."""
    path = tmp_path / "given" / "quick.yaml"
    path.parent.mkdir()
    path.write_text(QUICK)
    return path


@pytest.fixture
def run_folder(tmp_path):
    """Where a run may go; it isn't there yet."""
    return tmp_path / "runs" / "first"


@pytest.fixture
def train(nanode, quick, run_folder):
    """Gives the command that trains it there, with further options if need be."""

    def call(*options, out=run_folder):
        return nanode("train", "image", "--config", quick, "--out", out, *options)

    return call
