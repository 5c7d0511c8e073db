"""The paper's figure of random Chebyshev weights, beside other bases. Nothing is trained."""

from pathlib import Path

from nanode.analysis.random_weights import ChebyshevFigure, chebyshev_figure
from nanode.experiments.plan import Options, Planned
from nanode.reports.markdown import table, write_page
from nanode.training.files import write_atomically, write_json

NAME = "figure-chebyshev"


class FigureChebyshev:
    """Values, size and conditioning of weights with LeCun-normal coefficients on [0, 1]."""

    summary = "random weights in Chebyshev polynomials of degree 4, beside other bases"
    draws = True

    def plan(self, options: Options, root: Path | None = None) -> list[Planned]:
        """No runs."""
        return []

    def report(self, root: Path, out: Path, options: Options) -> list[Path]:
        """The figure, its numbers, and a page about both."""
        found = chebyshev_figure(draws=5 if options.tiny else 100)
        out.mkdir(parents=True, exist_ok=True)
        image, numbers = out / f"{NAME}.png", out / f"{NAME}.json"
        figure = found.figure()
        write_atomically(image, lambda half: figure.savefig(half, format="png", dpi=110))
        write_json(numbers, found.numbers())
        page = write_page(out / f"{NAME}.md", "Random Chebyshev weights", _parts(found))
        return [image, numbers, page]


def _condition(value: float) -> str:
    """Beyond this, digits are rounding's, and others on another machine."""
    return f"{value:.3g}" if value <= 1e13 else "> 1e13"


def _parts(found: ChebyshevFigure) -> list[str]:
    rows = [
        [
            name,
            f"{weights.swing:.2f}",
            f"{float(weights.condition.median()):.0f}",
            f"{weights.worst:.0f}",
            _condition(found.conditions[name][found.functions.index(5)]),
            _condition(found.conditions[name][-1]),
        ]
        for name, weights in found.by_basis.items()
    ]
    header = [
        "five functions",
        "largest / smallest size of W(t)",
        "condition of W(t), median",
        "at the worst t",
        "condition of the basis",
        f"of {found.functions[-1]} functions",
    ]
    return [
        f"![random weights]({NAME}.png)",
        "Left, the paper's figure: four weights as Chebyshev polynomials of degree 4 with "
        "LeCun-normal coefficients. The paper says that such values can grow or contract rapidly, "
        "leading to poorly conditioned matrices W(t). Their size does change with t. Their "
        "conditioning doesn't: with independent normal coefficients W(t) is at every t a Gaussian "
        "matrix times ‖z(t)‖, so its condition number has the same distribution at all times and "
        "for all bases, trigonometric ones included; and along t each draw passes near a singular "
        "matrix somewhere. What does depend on the basis is the conditioning of its functions, "
        "which is worst for the paper's own trigonometric basis (ω = 1).",
        table(header, rows),
    ]
