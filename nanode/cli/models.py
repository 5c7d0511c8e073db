"""``nanode models``: what ``--model``, ``--preset`` and ``--options`` take."""

from collections.abc import Iterable

from nanode.models import names
from nanode.models.classifier import PRESETS
from nanode.models.flows import GRADIENTS, SOLVERS
from nanode.models.video import NAMES


def command() -> None:
    """List the models by name, -D standing for a number, and their options."""
    print("\n".join(names()))
    options: dict[str, Iterable[str]] = {
        "--preset": PRESETS,
        "--options.solver": SOLVERS,
        "--options.gradient": GRADIENTS,
    }
    for option, choices in options.items():
        print(f"\n{option}: {', '.join(choices)}", end="")
    print(f"\n\nVideo models: {', '.join(NAMES)}; --options.flow: an image model's name")
