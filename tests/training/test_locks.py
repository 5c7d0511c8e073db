"""One process at a time at a run folder."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nanode.training import locks
from nanode.training.locks import LOCK, Busy, locked

fcntl = pytest.importorskip("fcntl")

HOLD = """
import sys
from pathlib import Path
from nanode.training.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the folder ``run``."""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def hold(folder):
    with locked(folder):
        pass


def test_another_process_is_refused_until_the_first_ends(tmp_path, other):
    folder = tmp_path / "run"
    message = r"the run in .*run is being trained by another process; .*name another folder"
    with pytest.raises(Busy, match=message):
        hold(folder)
    assert (folder / LOCK).exists()  # still the other's
    other.kill()
    other.wait()
    hold(folder)
    assert not (folder / LOCK).exists()


def test_a_file_that_cannot_be_removed_hides_no_error_and_holds_nobody_up(tmp_path, monkeypatch):
    def unlink(self, **options):
        raise PermissionError("no")

    def fail():
        with locked(tmp_path):
            raise KeyError("the body's")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyError, match="the body's"):
            fail()
    hold(tmp_path)


def test_what_is_there_and_cannot_be_opened_ends_the_attempt(tmp_path):
    (tmp_path / LOCK).symlink_to(tmp_path / "no" / "where")
    with pytest.raises(Busy, match="remove that file"):
        hold(tmp_path)


def test_another_users_file_is_locked_all_the_same(tmp_path, monkeypatch):
    original = os.open
    (tmp_path / LOCK).touch()

    def refuse_writing(path, flags, *mode):
        if flags & os.O_RDWR:
            raise PermissionError("another user's")
        return original(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse_writing)
    hold(tmp_path)


def test_nothing_is_left_behind(tmp_path):
    hold(tmp_path / "a" / "run")
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "a" / "run"):
        (tmp_path / "a" / "run" / "file").touch()
    assert [path.name for path in (tmp_path / "a" / "run").iterdir()] == ["file"]


def test_the_holder_may_take_it_again(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        hold(folder / ".." / "run")
        assert (folder / LOCK).exists()
    assert not folder.exists()


def test_another_thread_may_not(tmp_path):
    found = []

    def attempt():
        try:
            hold(tmp_path)
        except Busy as why:
            found.append(why)

    with locked(tmp_path):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert len(found) == 1


def test_a_file_that_its_holder_removed_is_no_lock(tmp_path, monkeypatch):
    """It was opened before that and locked after it; whoever comes later would make another."""
    original, calls = fcntl.flock, []

    def flock(file, how):
        calls.append(file)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()
        original(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert len(calls) == 2


def test_without_locks_all_goes_on(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError("not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    hold(tmp_path)
    monkeypatch.setattr(locks, "fcntl", None)
    hold(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError])
def test_a_folder_that_its_holder_just_removed_is_made_again(tmp_path, monkeypatch, error):
    original, calls = Path.mkdir, []

    def mkdir(self, *arguments, **options):
        calls.append(self)
        if len(calls) == 1:
            raise error
        original(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).exists()
