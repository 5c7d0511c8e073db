"""``nanode data``: which data sets there are, and getting them ahead of a run."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from nanode.data import SOURCES, data_root, load, video
from nanode.data.source import show_progress
from nanode.values import check_choice

command = App(name="data")


@command.default
def names() -> None:
    """List the data sets by name, and say where their files are looked for."""
    print("\n".join(SOURCES))
    print(f"\nVideo: {', '.join(video.SOURCES)}")
    print(f"\nFiles are in {data_root()}; --data-root or NANODE_DATA names another folder.")


@command.command
def fetch(
    name: str,
    /,
    *,
    root: Annotated[Path | None, Parameter(name=("--data-root", "--root"))] = None,
) -> None:
    """Download a data set, or go on with a download, and check it.

    Parameters
    ----------
    name
        The data set.
    root
        The folder for its files; by default the one that NANODE_DATA names, or the user's cache.
    """
    check_choice("the data set", name, [*SOURCES, *video.SOURCES])
    if name in video.SOURCES:
        clips = video.load(name, root=root, progress=show_progress)
        print(clips.train, clips.test, sep="\n")
        return
    data = load(name, root, progress=show_progress)
    shape = "×".join(str(side) for side in data.shape)
    print(f"{name}: {len(data.train):,} images of {shape} to train, {len(data.test):,} to test")
