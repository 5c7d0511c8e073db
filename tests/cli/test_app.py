"""The command itself: help, names, errors."""

import importlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points

import pytest

import nanode as package
from nanode.cli import main
from nanode.cli.app import COMMANDS, app


def test_version(nanode):
    assert nanode("--version") == (0, f"{package.__version__}\n", "")


def test_help_names_every_command(nanode):
    status, out, _ = nanode("--help")
    assert status == 0
    for name, summary in COMMANDS.items():
        assert name in out
        assert summary in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_file_and_help(nanode, name):
    module = importlib.import_module(f"nanode.cli.{name}")
    assert callable(module.command)
    status, out, _ = nanode(name, "--help")
    assert status == 0
    assert f"Usage: nanode {name}" in out


@pytest.mark.parametrize("kind", ["image", "video"])
def test_every_setting_says_what_it_is_for(kind):
    # A process of its own: the width of the help is settled when a process first prints.
    command = [sys.executable, "-m", "nanode", "train", kind, "--help"]
    wide = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=wide)
    lines = [line.strip("│* ") for line in done.stdout.splitlines() if "--" in line]
    options = [line for line in lines if line.startswith("--")]
    assert len(options) > 30
    for line in options:
        said = re.sub(r"\[(default|required).*", "", line)
        assert re.fullmatch(r"\S.*\S {2,}\w.*[.…] *", said), line


def test_help_and_unknown_commands_import_no_torch():
    """Torch takes seconds to import; nobody waits for that to read a list."""
    code = (
        "import sys; from nanode.cli import main;"
        "[main([token]) for token in ('--help', '--version', 'trian')];"
        "print([name for name in sys.modules if name.startswith(('torch', 'nanode.training'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_script_is_installed():
    (script,) = entry_points(group="console_scripts", name="nanode")
    assert script.load() is main


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "nanode", "trian"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith('nanode: Unknown command "trian". Did you mean "train"?')


def test_an_unknown_command_lists_all(nanode):
    status, out, err = nanode("something")
    assert (status, out) == (2, "")
    assert err.endswith(f"Available commands: {', '.join(COMMANDS)}.\n")
    assert "Did you mean" not in err


@pytest.mark.parametrize("tokens", [("models", "auto"), ("recipes", "staged", "auto")])
def test_too_many_arguments(nanode, tokens):
    expected = f"nanode: unexpected auto; nanode {tokens[0]} --help shows what is expected\n"
    assert nanode(*tokens) == (2, "", expected)


def test_an_unknown_option(nanode):
    status, out, err = nanode("evaluate", "somewhere", "--splti", "test")
    assert (status, out) == (2, "")
    assert err == "nanode: Unknown option: --splti. Did you mean --split?\n"


def test_numbers_are_not_rounded(nanode):
    status, _, err = nanode("reproduce", "table1", "--seeds", "1.5")
    assert status == 2
    assert err == 'nanode: Invalid value for --seeds: unable to convert "1.5" into int.\n'


def test_a_missing_argument(nanode):
    status, _, err = nanode("evaluate")
    assert status == 2
    assert "RUN" in err


# ---- what goes wrong inside a command


@pytest.fixture
def failing(monkeypatch):
    """Have the command ``models`` fail in some way."""

    def fail(why):
        def command():
            raise why

        monkeypatch.setattr(app["models"], "default_command", command)

    return fail


@pytest.mark.parametrize(
    ("why", "status", "message"),
    [
        (ValueError("a wrong value"), 1, "a wrong value"),
        (OSError(5, "Input/output error"), 1, "[Errno 5] Input/output error"),
        (ImportError("needs x: pip install x"), 1, "needs x: pip install x"),
        (RuntimeError("out of memory"), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("some way out"), 130, "some way out"),
        (KeyError("x"), 1, "unexpected KeyError: 'x' (--debug shows where it comes from)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_take_one_line(nanode, failing, why, status, message):
    failing(why)
    assert nanode("models") == (status, "", f"nanode: {message}\n")


def test_sigterm_is_an_interrupt(nanode, monkeypatch):
    def command():
        signal.raise_signal(signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(app["models"], "default_command", command)
    assert nanode("models").status == 130


@pytest.mark.parametrize("tokens", [("--debug", "models"), ("models", "--debug")])
def test_debug_shows_where_an_error_comes_from(nanode, failing, tokens):
    failing(ValueError("a wrong value"))
    status, _, err = nanode(*tokens)
    assert status == 1
    assert err.startswith("Traceback")
    assert "raise why" in err
    assert err.endswith("nanode: a wrong value\n")


def test_without_cyclopts(nanode, monkeypatch):
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    monkeypatch.delitem(sys.modules, "nanode.cli.app")
    assert nanode("--version") == (
        1,
        "",
        "nanode: the command line needs cyclopts: pip install nanode[cli]\n",
    )


@pytest.mark.parametrize(("token", "status"), [("models", 141), ("reproduce", 141), ("--help", 1)])
def test_the_end_of_a_pipe_is_no_error(token, status):
    """As of ``nanode models | head -1``: whoever reads has gone; of the help it is Rich's end."""
    there, here = os.pipe()
    os.close(there)
    command = [sys.executable, "-m", "nanode", token]
    done = subprocess.run(command, stdout=here, stderr=subprocess.PIPE, check=False)
    os.close(here)
    assert (done.returncode, done.stderr) == (status, b"")


def test_what_an_encoding_lacks_is_replaced(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["reproduce"]) == 0
    sys.stdout.flush()
    assert b"Table 2: ?ELBO" in raw.getvalue()
