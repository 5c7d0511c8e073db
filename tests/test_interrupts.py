import signal
import threading

import pytest

from nanode.interrupts import asked_to_stop, postponed, raised


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_breaks_off(number, capsys):
    before = signal.getsignal(number)
    with asked_to_stop() as asked:
        assert not asked()
        signal.raise_signal(number)
        assert asked()
        assert "stopping after this step" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_an_import(number):
    before, steps = signal.getsignal(number), []

    def started():
        with postponed():
            signal.raise_signal(number)
            steps.append("imported")
        steps.append("went on")

    with pytest.raises(KeyboardInterrupt):
        started()
    assert steps == ["imported"]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_asks_nothing_is_interrupted(number):
    with raised(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_other_threads_receive_no_signals():
    found = []

    def work():
        with asked_to_stop() as asked:
            found.append(asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_nobody_reads_along_any_more(monkeypatch):
    """As after ``… | tee log``, where Ctrl-C ends tee as well."""

    class Closed:
        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr("sys.stderr", Closed())
    with asked_to_stop() as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked()


def test_what_is_ignored_stays_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with asked_to_stop() as asked:
            signal.raise_signal(signal.SIGTERM)
            assert not asked()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
