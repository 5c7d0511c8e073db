"""The package's names, which bring torch in only when the first of them is asked for."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import nanode


def shown():
    """The names as type checkers see them, with the parts they come from."""
    return {
        alias.name: node.module
        for node in ast.walk(ast.parse(Path(nanode.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("nanode.")
        for alias in node.names
    }


def alone(code):
    """What code prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_names_are_what_type_checkers_see():
    assert sorted(shown()) == sorted(nanode.__all__)
    for name, part in shown().items():
        assert getattr(nanode, name) is getattr(importlib.import_module(part), name)


def test_the_package_alone_is_light():
    code = "import sys, nanode; nanode.__version__; dir(nanode); print('torch' in sys.modules)"
    assert alone(code) == "False"


def test_ways_to_a_name():
    ways = (
        "import nanode; print(nanode.Euler.__name__)",
        "from nanode import Euler; print(Euler.__name__)",
        "from nanode import *; print(Euler.__name__)",
        "import nanode; print(nanode.solvers.Euler.__name__)",
        "from nanode import solvers; print(solvers.Euler.__name__)",
        "from nanode.solvers import Euler; print(Euler.__name__)",
    )
    # One after the other, each as the first to import nanode: torch alone stays, and takes seconds.
    code = f"""
import sys
for way in {ways}:
    exec(way, {{}})
    for name in [name for name in sys.modules if name.partition(".")[0] == "nanode"]:
        del sys.modules[name]
"""
    assert alone(code).split() == ["Euler"] * len(ways)


def test_parts_without_names_of_the_package():
    code = "import nanode; print(nanode.training.calibrate.__name__, nanode.data.load.__name__)"
    assert alone(code) == "calibrate load"


def test_names_can_be_completed():
    found = alone("import nanode; print(*dir(nanode))").split()
    assert {*shown(), "analysis", "solvers", "training", "__version__"} <= {*found}


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'nanode' has no attribute 'Eulr'"):
        _ = nanode.Eulr
    with pytest.raises(ImportError, match="cannot import name 'Eulr'"):
        from nanode import Eulr  # noqa: F401
