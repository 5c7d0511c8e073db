"""Configurations as YAML: read with the file and the key in every message, written, shipped."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from nanode.training.config import Settings, TrainConfig
from nanode.training.files import write_text
from nanode.values import check_choice, nearest

T = TypeVar("T")

_WHOLE, _NUMBER, _MERGE = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "merge"))
#: Far beyond any configuration, and within what Python can go through.
_DEEPEST = 100


def load_config(path: str | Path) -> TrainConfig:
    """Read a configuration from a YAML file."""
    return read_document(TrainConfig, path)


def read_document(kind: type[T], path: str | Path) -> T:
    """Read a configuration of some kind from a YAML file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as why:
        raise ValueError(f"can't read the configuration {path}: {why}") from why
    return parse_document(kind, text, str(path))


def save_config(config: Settings, path: str | Path) -> None:
    """Write a configuration, all keys of it, as YAML."""
    text = yaml.dump(config.as_dict(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    write_text(Path(path), text)


def parse_document(kind: type[T], text: str, where: str) -> T:
    """A configuration of some kind from YAML text; ``where`` names it in errors.

    >>> parse_document(TrainConfig, "{data: digits, model: auto, epoch: 3}", "my.yaml")
    Traceback (most recent call last):
    ValueError: my.yaml: unknown key 'epoch'. Did you mean 'epochs'?
    """
    try:
        document = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as why:  # ValueError: of a date that doesn't exist, say
        raise ValueError(f"{where} is no YAML: {why}") from why
    return from_mapping(kind, document, where)


def read_value(text: str) -> Any:
    """A single value as it stands in a YAML file; what is no YAML is text.

    >>> [read_value(text) for text in ("3", "4e-1", "null", "true", "coupled-euler", "a: b: c")]
    [3, 0.4, None, True, 'coupled-euler', 'a: b: c']
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError):  # the latter for a 30th of February
        return text


def put(document: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set the value at nested keys, in place; mappings that are missing are made."""
    *path, last = keys
    for n, key in enumerate(path, 1):
        document = document.setdefault(key, {})
        if not isinstance(document, dict):
            here, all_keys = ".".join(path[:n]), ".".join(keys)
            raise ValueError(f"{here} is {document!r}, it can't have {all_keys}")
    document[last] = value


def recipe_names(package: str = "nanode.training") -> list[str]:
    """The configurations that come with a package."""
    folder = resources.files(package).joinpath("recipes")
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def recipe(name: str) -> TrainConfig:
    """A configuration that comes with the package.

    >>> recipe("table1").optimizer.momentum
    0.9
    """
    return shipped(TrainConfig, name, "nanode.training")


def shipped(kind: type[T], name: str, package: str) -> T:
    """A configuration of some kind that comes with a package."""
    check_choice("the recipe", name, recipe_names(package))
    entry = resources.files(package).joinpath("recipes", f"{name}.yaml")
    return parse_document(kind, entry.read_text(encoding="utf-8"), f"the recipe {name}")


def from_mapping(kind: type[T], document: Any, where: str, path: str = "") -> T:
    """A dataclass from nested mappings; values are brought to their declared types."""
    if not isinstance(document, Mapping):
        here = path.rstrip(".") or "the document"
        raise ValueError(f"{where}: {here} must map keys to values, got {document!r}")
    hints = get_type_hints(kind)
    for key in document:
        if key not in hints:
            raise ValueError(f"{where}: unknown key {path + str(key)!r}{_meant(key, kind, path)}")
    if missing := missing_keys(kind, document):
        raise ValueError(f"{where}: the key {path + missing[0]!r} is missing")
    values = {
        key: _typed(value, hints[key], where, f"{path}{key}") for key, value in document.items()
    }
    try:
        return kind(**values)
    except ValueError as why:
        raise ValueError(f"{where}: {why}") from why


def missing_keys(kind: type[Any], document: Mapping[str, Any]) -> list[str]:
    """The keys without a default that a document lacks."""
    needed = (f for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return [field.name for field in needed if field.name not in document]


def _typed(value: Any, hint: Any, where: str, key: str) -> Any:
    """A value brought to its declared type, where that loses nothing."""
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return from_mapping(hint, value, where, f"{key}.")
    if get_origin(hint) is UnionType:
        if value is None and NoneType in get_args(hint):
            return None
        (hint,) = (kind for kind in get_args(hint) if kind is not NoneType)
        return _typed(value, hint, where, key)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_typed(part, get_args(hint)[0], where, key) for part in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as why:
            raise ValueError(f"{where}: {key} must be a finite number: {why}") from why
    plain = get_origin(hint) or hint
    right = isinstance(value, plain) and not (plain is int and isinstance(value, bool))
    if hint is not Any and not right:
        raise ValueError(
            f"{where}: {key} must be {_WORDS[plain]}, got {value!r} ({type(value).__name__})"
        )
    return value


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list",
    dict: "a mapping",
}


def _meant(key: object, kind: type[Any], path: str) -> str:
    """The key that was meant: a near one here, or the same word in a nested mapping."""
    hints = get_type_hints(kind)
    nested = [f"{name}.{key}" for name, hint in hints.items() if key in _keys(hint)]
    if nested:
        return f". Did you mean {path + nested[0]!r}?"
    return nearest(path + str(key), [path + name for name in hints])


def _keys(hint: Any) -> list[str]:
    return [part.name for part in fields(hint)] if is_dataclass(hint) else []


class _Loader(yaml.SafeLoader):
    """YAML with numbers as people write them, in which no key is given twice."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse what is nested so deeply that Python's stack wouldn't hold it."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.composer.ComposerError(
                None, None, "lists or mappings are nested too deeply", self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuse keys that are given twice; later those that a merge (<<) brings are among them."""
        node = super().compose_mapping_node(anchor)
        keys = [(key.tag, key.value) for key, _ in node.value if key.tag != _MERGE]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.composer.ComposerError(
                    None, None, f"the key {key[1]!r} is given twice", node.start_mark
                )
        return node


# PyYAML follows YAML 1.1, where 5e-4 is a word, 010 is 8 and 1:30 is 90.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (_WHOLE, _NUMBER)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _WHOLE,
    re.compile(r"[-+]?(0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    _NUMBER,
    re.compile(
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?$"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes where the loader would take it for something else."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
