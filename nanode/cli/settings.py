"""Settings of a run on the command line, over those of a recipe or of a file.

cyclopts takes the names of the options and their help from a dataclass; their values are read as
those of a YAML file are, and checked by the same reader. So ``--epochs 1.5`` is refused and not
rounded, ``--clip null`` takes a recipe's clipping away, and ``--options.steps 20`` changes that
option alone. Where text is wanted, it is what was typed: ``--data-root 2024`` is a folder.
"""

from collections.abc import Callable, Iterator
from typing import Any

from cyclopts import App, Argument, ArgumentCollection, Token
from cyclopts.utils import UNSET

from nanode.cli.recipes import KINDS
from nanode.training.documents import (
    from_mapping,
    missing_keys,
    put,
    read_document,
    read_value,
    recipe_names,
    shipped,
)

Config = Callable[[App, tuple[str, ...], ArgumentCollection], None]


def settings_over_a_base(kind: type[Any], package: str, offline: str) -> Config:
    """A cyclopts ``config`` for a command with a parameter of the dataclass ``kind``.

    Its options ``--recipe``, one of the recipes of ``package``, or ``--config``, a file, name what
    the other options are laid over. ``offline`` is a recipe that needs nothing else.
    """

    def settle(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        values = _base(kind, package, arguments)
        (settings,) = (argument for argument in arguments if argument.hint is kind)
        for option in settings.children_recursive:
            for keys, value in _given(option):
                put(values, keys, value)
            option.tokens.clear()
        if missing := missing_keys(kind, values):
            raise ValueError(
                f"--{missing[0]} is needed, or a --recipe to start from, which has one: {offline} "
                "takes seconds, on data that come with the package; `nanode recipes` lists all"
            )
        settings.append(Token(implicit_value=from_mapping(kind, values, "the command line")))

    return settle


def _base(kind: type[Any], package: str, arguments: ArgumentCollection) -> dict[str, Any]:
    recipe, file = (
        arguments[name].tokens[-1].value if arguments[name].tokens else None
        for name in ("--recipe", "--config")
    )
    if recipe is not None and file is not None:
        raise ValueError("--recipe and --config exclude each other; give one of them")
    if recipe is not None:
        _check_kind(recipe, package)
        base = shipped(kind, recipe, package)
    elif file is not None:
        base = read_document(kind, file)
    else:
        return {}
    values: dict[str, Any] = base.as_dict()
    return values


def _check_kind(recipe: str, package: str) -> None:
    """Refuse a recipe of the other command."""
    for kind, other in KINDS.items():
        if recipe in recipe_names(other) and recipe not in recipe_names(package):
            raise ValueError(f"{recipe!r} is a recipe of `nanode train {kind}`")


def _given(option: Argument) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The value of an option, if it was given, with the keys it belongs to."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for token in option.tokens:
        typed = token.implicit_value is UNSET
        value = _read(token.value, option.hint) if typed else token.implicit_value
        # Hyphens in what cyclopts doesn't know, the keys of ``options``, as in all other names.
        own = tuple(key.replace("-", "_") for key in token.keys)
        found.setdefault(option.keys + own, []).append(value)
    for keys, values in found.items():
        yield keys, values if len(values) > 1 else values[0]


def _read(text: str, hint: Any) -> Any:
    """A value for a field of some type: as in YAML, or as it stands where text is wanted."""
    if hint is str:
        return text
    value = read_value(text)
    return text if hint == str | None and value is not None else value
