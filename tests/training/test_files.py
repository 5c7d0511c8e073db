"""Files that are there whole or not at all, on Windows, too."""

import errno
import io
import os
from types import SimpleNamespace

import pytest

from nanode.training import files
from nanode.training.files import (
    HALF,
    check_writable,
    remove_halves,
    write_atomically,
    write_text,
)


@pytest.fixture
def synced(monkeypatch):
    """The files that were synced; as on Windows those open for reading alone can't be."""
    fcntl = pytest.importorskip("fcntl")
    found = set()

    def fsync(number):
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        found.add(os.fstat(number).st_ino)

    monkeypatch.setattr(files.os, "fsync", fsync)
    return found


class Place(SimpleNamespace):
    """What stands for ``os``: another system's name, and files that are held for a while."""

    def __init__(self, name, held):
        super().__init__(name=name, held=held, tries=0)

    def __getattr__(self, name):
        return getattr(os, name)

    def replace(self, half, path):
        self.tries += 1
        if self.tries <= self.held:
            raise PermissionError(
                errno.EACCES, "held by another process", str(half), None, str(path)
            )
        os.replace(half, path)


@pytest.fixture
def waits(monkeypatch):
    """How long was waited, by nobody."""
    found = []
    monkeypatch.setattr(files.time, "sleep", found.append)
    return found


def fill(folder):
    (folder / "inner").mkdir(parents=True)
    (folder / "one").write_bytes(b"1")
    (folder / "inner" / "two").write_bytes(b"2")


def test_a_file_reaches_the_disk_by_a_descriptor_that_writes(tmp_path, synced):
    write_text(tmp_path / "a", "∂θ\n")
    assert synced == {(tmp_path / "a").stat().st_ino}
    assert (tmp_path / "a").read_bytes() == "∂θ\n".encode()
    assert os.listdir(tmp_path) == ["a"]


def test_and_so_do_all_files_of_a_folder(tmp_path, synced):
    write_atomically(tmp_path / "a", fill)
    written = {tmp_path / "a" / "one": b"1", tmp_path / "a" / "inner" / "two": b"2"}
    assert synced == {path.stat().st_ino for path in written}
    assert {path: path.read_bytes() for path in written} == written
    assert os.listdir(tmp_path) == ["a"]


def test_lines_end_alike_on_all_systems(tmp_path, monkeypatch):
    opened = io.open

    def on_windows(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        newline = "\r\n" if newline is None and "w" in mode and "b" not in mode else newline
        return opened(file, mode, buffering, encoding, errors, newline)

    monkeypatch.setattr(io, "open", on_windows)
    (tmp_path / "other").write_text("one\n", encoding="utf-8")
    write_text(tmp_path / "a", "one\ntwo\n")
    assert (tmp_path / "other").read_bytes() == b"one\r\n"
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\n"


def test_windows_moves_a_file_when_nobody_holds_the_old_one(tmp_path, monkeypatch, waits):
    monkeypatch.setattr(files, "os", Place("nt", held=2))
    (tmp_path / "a").write_text("old", encoding="utf-8")
    write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "new"
    assert len(waits) == 2
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(("name", "tries"), [("nt", 6), ("posix", 1)])
def test_what_is_held_for_long_stays(name, tries, tmp_path, monkeypatch, waits):
    """On other systems it is a refusal, which no waiting changes."""
    monkeypatch.setattr(files, "os", place := Place(name, held=99))
    (tmp_path / "a").write_text("old", encoding="utf-8")
    with pytest.raises(PermissionError, match="held by another process"):
        write_text(tmp_path / "a", "new")
    assert (place.tries, len(waits)) == (tries, tries - 1)
    assert sum(waits) < 2
    assert (tmp_path / "a").read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_is_written_is_whole_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    done, move = [], os.replace

    def replace(half, path):
        done.append(half.read_text(encoding="utf-8"))
        move(half, path)

    monkeypatch.setattr(files.os, "fsync", lambda file: done.append("reach the disk"))
    monkeypatch.setattr(files.os, "replace", replace)
    write_text(tmp_path / "a", "new")
    assert done == ["reach the disk", "new"]


@pytest.mark.parametrize(
    "make", [lambda half: half.write_bytes(b"1"), fill], ids=["file", "folder"]
)
def test_nothing_half_written_stays(make, tmp_path):
    def write(half):
        make(half)
        raise KeyboardInterrupt

    (tmp_path / "a").write_text("old", encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", write)
    assert (tmp_path / "a").read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / f".a.1{HALF}").write_bytes(b"1")
    fill(tmp_path / f".b.2{HALF}")
    (tmp_path / "c").write_bytes(b"3")
    remove_halves(tmp_path)
    assert os.listdir(tmp_path) == ["c"]


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"the folder .*run can't be made: .*file is a file"):
        check_writable(tmp_path / "file" / "run")
    check_writable(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == ["file"]  # nothing is made by looking


def test_no_permission(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ValueError, match="no permission to write the folder"):
        check_writable(tmp_path / "run")
