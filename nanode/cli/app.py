"""The list of commands, and how what goes wrong is shown."""

import errno
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, get_args

from cyclopts import (
    App,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)

from nanode import __version__
from nanode.interrupts import postponed, print_anything, raised, unread

#: Each command's name and what it does; ``command`` in the file of that name carries it out.
COMMANDS = {
    "train": "Train a model.",
    "evaluate": "Measure a trained model again.",
    "generate": "Show what a trained video model predicts.",
    "analyse": "Show how stable the flows of a trained model are.",
    "reproduce": "Carry out an experiment of the paper and report on it.",
    "models": "List the models by name.",
    "data": "List the data sets by name, or fetch one.",
    "recipes": "List the recipes by name, or print one.",
}


def whole_numbers(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse 1.5 for a whole number, which cyclopts would round."""
    for argument in arguments:
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


def no_empty_paths(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse an empty path, such as an unset variable's, which would be the current folder."""
    for argument in arguments:
        if Path in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                if not token.value:
                    name = token.keyword or argument.name
                    raise ValueError(f"{name} is empty; name a path (. is the current folder)")


app = App(
    name="nanode",
    help="Neural ODEs whose weights are explicit functions of time.",
    version=__version__,
    default_parameter=Parameter(negative_iterable=()),
    config=(whole_numbers, no_empty_paths),
    suppress_keyboard_interrupt=False,
    exit_on_error=False,
    print_error=False,
    result_action="return_value",
)
for _place, (_name, _summary) in enumerate(COMMANDS.items()):
    # By its path: a command is imported when it is called, since most of them need torch.
    app.command(f"nanode.cli.{_name}:command", name=_name, help=_summary, sort_key=_place)

#: Errors whose messages are for whoever gave the command.
EXPECTED = (ValueError, OSError, ImportError, RuntimeError)


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    debug: Annotated[bool, Parameter(negative="", help="Show where an error comes from.")] = False,
) -> None:
    app(tokens)


app.meta.suppress_keyboard_interrupt = False


def run(tokens: Sequence[str]) -> int:
    """Carry out a command; its exit status.

    0, or 1 for what failed, 2 for options that don't exist or lack a value, 130 for Ctrl-C and
    SIGTERM, 141 where nobody reads what is printed.
    """
    print_anything()
    try:
        with raised():
            _import(tokens)
            app.meta(tokens)
            print(end="", flush=True)  # else what is left would be found unwanted at the very end
    except (Exception, KeyboardInterrupt) as why:
        if isinstance(why, BrokenPipeError) and unread():
            return 141
        if "--debug" in tokens:
            traceback.print_exc()
        message, status = _described(why)
        print(f"nanode: {message}", file=sys.stderr)
        return status
    return 0


def _import(tokens: Sequence[str]) -> None:
    """Import the command that is called, as cyclopts would, but by itself."""
    name = next((token for token in tokens if not token.startswith("-")), None)
    if name in COMMANDS:
        with postponed():
            import_module(f"nanode.cli.{name}")


def _described(why: BaseException) -> tuple[str, int]:
    """What is said of an error, and the exit status it gives."""
    if isinstance(why, UnknownCommandError) and why.app is app:
        return _unknown_command((why.unused_tokens or ["?"])[0]), 2
    if isinstance(why, UnusedCliTokensError):
        command = " ".join(["nanode", *(why.command_chain or ())])
        left = " ".join(why.unused_tokens or ())
        return f"unexpected {left}; {command} --help shows what is expected", 2
    if isinstance(why, CycloptsError):
        return str(why), 2
    if isinstance(why, KeyboardInterrupt):
        return str(why) or "interrupted", 130
    if isinstance(why, OSError) and why.errno == errno.ENOSPC:
        return f"{why}; make room, and give the same command again", 1
    if isinstance(why, EXPECTED):
        return str(why), 1
    return f"unexpected {type(why).__name__}: {why} (--debug shows where it comes from)", 1


def _unknown_command(name: str) -> str:
    """As cyclopts says it, which would import every command for that."""
    near = get_close_matches(name, COMMANDS, n=1)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    return f'Unknown command "{name}".{hint} Available commands: {", ".join(COMMANDS)}.'
