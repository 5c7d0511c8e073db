"""The folders are the equation, read from the inside out: imports point only to the left."""

import ast
from pathlib import Path

import pytest

import nanode

#: Each part of the package may import those before it, and itself.
ORDER = (
    "values",
    "doubles",
    "tracing",
    "stages",
    "bases",
    "trajectories",
    "fields",
    "solvers",
    "kernels",
    "gradients",
    "integrate",
    "block",
    "transforms",
    "analysis",
    "models",
    "data",
    "interrupts",
    "training",
    "reports",
    "experiments",
    "demo",
    "cli",
)
#: The package's front page shows what is up to here; parts after it may import it.
FRONT = "analysis"
ROOT = Path(nanode.__file__).parent


def place(part):
    """Where a part stands; a name that is no part is one of the front page's."""
    return ORDER.index(part if part in ORDER else FRONT)


def imported(source, module):
    """The parts of nanode that a file imports, "" for the package itself, wherever it does so.

    ``module`` is the file's own dotted name, from which relative imports are read.
    """
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: -node.level]
                base = ".".join([*parents, base] if base else parents)
            # ``from nanode import x`` may mean the part x.
            names += (
                [f"{base}.{alias.name}" for alias in node.names] if base == "nanode" else [base]
            )
    found = [name.split(".") for name in names if name.split(".")[0] == "nanode"]
    return [name[1] if len(name) > 1 else "" for name in found]


def violations(source, module):
    """Imports that point to the right, as "importer -> imported"."""
    own = module.split(".")[1] if "." in module else ""
    if own == "__main__":  # runs the command line
        own = ORDER[-1]
    return [
        f"{module} -> nanode{'.' + part if part else ''}"
        for part in imported(source, module)
        if (place(part) > place(own) if own in ("", part) else place(part) >= place(own))
    ]


def files():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        # A package's relative imports start from inside it, as from any of its modules.
        yield pytest.param(path, ".".join(parts), id=".".join(parts[:-1] if is_package else parts))


@pytest.mark.parametrize(("path", "module"), [*files()])
def test_imports_point_to_the_left(path, module):
    module = "nanode" if module == "nanode.__init__" else module
    assert violations(path.read_text(encoding="utf-8"), module) == []


def test_every_part_has_its_place():
    parts = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert parts - {"__init__", "__main__", "__pycache__"} == set(ORDER)


def test_the_readme_shows_that_order():
    tree = (
        (ROOT.parent / "README.md")
        .read_text(encoding="utf-8")
        .split("```\nnanode/\n")[1]
        .split("tests/")[0]
    )
    shown = [line.split()[0].removesuffix("/").removesuffix(".py") for line in tree.splitlines()]
    assert shown == list(ORDER)


# ---- the checker itself


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("nanode.bases.constant", "from nanode.stages import Side", []),
        ("nanode.bases.constant", "from nanode.bases.basis import Basis", []),
        ("nanode.block", "from nanode.integrate import solve\nimport torch, numpy", []),
        ("nanode.analysis.memory", "from nanode.block import ODEBlock", []),
        ("nanode", "from nanode.block import ODEBlock", []),
        ("nanode", "from nanode.analysis import measure_memory", []),
        ("nanode", "from nanode.models import create", ["nanode.models"]),
        ("nanode.__main__", "from nanode.cli.app import main", []),
        ("nanode.training.costs", "from nanode.analysis import measure_memory", []),
        ("nanode.training.costs", "from nanode import ODEBlock", []),
        ("nanode.training.costs", "from nanode.reports import tables", ["nanode.reports"]),
        ("nanode.analysis.survey", "from nanode.training import train", ["nanode.training"]),
        ("nanode.analysis.survey", "from nanode import ODEBlock", ["nanode.ODEBlock"]),
        ("nanode.reports.table1", "import nanode.experiments.plan", ["nanode.experiments"]),
        ("nanode.bases.constant", "import nanodes.block\nfrom os import path", []),
        ("nanode.bases.constant", "from nanode.fields import Field", ["nanode.fields"]),
        ("nanode.stages", "import nanode.bases.basis", ["nanode.bases"]),
        ("nanode.stages", "from nanode import bases", ["nanode.bases"]),
        ("nanode.stages", "from nanode import Legendre", ["nanode.Legendre"]),
        ("nanode.solvers.grid", "import nanode", ["nanode"]),
        ("nanode.solvers.grid", "from nanode.gradients.problem import Plan", ["nanode.gradients"]),
        ("nanode.integrate", "from nanode.block import ODEBlock", ["nanode.block"]),
        ("nanode.block", "from nanode.analysis import memory", ["nanode.analysis"]),
        ("nanode.bases.constant", "from ..fields import Field", ["nanode.fields"]),
        ("nanode.bases.constant", "from .. import fields", ["nanode.fields"]),
        ("nanode.bases.constant", "from .basis import Basis\nfrom . import waves", []),
        ("nanode.bases.constant", "def f():\n    import nanode.fields", ["nanode.fields"]),
        (
            "nanode.fields.gated",
            "if TYPE_CHECKING:\n    from nanode.gradients import Plan",
            ["nanode.gradients"],
        ),
        ("nanode.bases.constant", '"""\nimport nanode.fields\n"""', []),
    ],
)
def test_the_checker_sees_it(module, source, wrong):
    assert violations(source, module) == [f"{module} -> {target}" for target in wrong]
