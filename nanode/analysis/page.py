"""What ``analyse`` finds about a model: one page of figures, and its numbers.

analysis.png   the figures, one band a flow
analysis.json  the numbers behind them
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanode.analysis.conditioning import BasisCondition
from nanode.analysis.drawing import Findings, new_figure
from nanode.analysis.gradients import GradientNorms
from nanode.analysis.growth import GrowthRates
from nanode.analysis.jacobian import JacobianSpectrum
from nanode.analysis.spectrum import TrajectorySpectrum
from nanode.analysis.transition import SingularValues
from nanode.analysis.weights import WeightNorms


@dataclass(frozen=True, eq=False)
class SampleAnalysis(Findings):
    """What depends on the input, for one sample."""

    transition: SingularValues
    #: None where no parameter is trained.
    sensitivity: SingularValues | None
    jacobian: JacobianSpectrum
    gradients: GradientNorms
    growth: GrowthRates


@dataclass(frozen=True, eq=False)
class FlowAnalysis(Findings):
    """All about one flow of a model."""

    #: Whether the steps or the equation was looked at.
    of: str
    #: How many numbers the state of one sample has, and how many parameters the field.
    size: int
    parameters: int
    #: Whether all singular values of Φ and J, and of S, are known, or the largest are estimated.
    exact: bool
    exact_sensitivity: bool
    samples: tuple[SampleAnalysis, ...]
    #: None where no weight moves.
    weights: WeightNorms | None
    spectrum: TrajectorySpectrum | None
    bases: dict[str, BasisCondition]

    def draw(self, panels: Any) -> None:
        """Eight figures, on as many axes."""
        panels = iter(panels)
        for name, title in _PANELS.items():
            ax = next(panels)
            ax.set_title(title, fontsize=9)
            for n, sample in enumerate(self.samples):
                part = getattr(sample, name)
                if part is not None:
                    part.plot(ax, color=f"C{n}", linewidth=1)
            _one_legend(ax)
        for title, parts in (
            ("size and condition of W(t)", [self.weights]),
            ("energy of W(t) by order", [self.spectrum]),
            ("singular values of the basis", list(self.bases.values())),
        ):
            ax = next(panels)
            ax.set_title(title, fontsize=9)
            found = [part for part in parts if part is not None]
            for part in found:
                part.plot(ax)
            if not found:
                ax.text(0.5, 0.5, "no weight moves", ha="center", transform=ax.transAxes)


_PANELS = {
    "transition": "state transition Φ(t, t₀)",
    "sensitivity": "sensitivity S(t)",
    "jacobian": "Jacobian of the field",
    "gradients": "gradient back in time",
    "growth": "growth rates of random changes",
}


@dataclass(frozen=True, eq=False)
class Analysis(Findings):
    """What ``analyse`` found, by flow."""

    flows: dict[str, FlowAnalysis]

    def numbers(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {name: flow.numbers() for name, flow in self.flows.items()}

    def figure(self) -> Any:
        """One band of eight figures a flow."""
        figure = new_figure(17, 7.5 * len(self.flows))
        bands = figure.subfigures(len(self.flows), squeeze=False)[:, 0]
        for band, (name, flow) in zip(bands, self.flows.items(), strict=True):
            how = "exact" if flow.exact else "largest values, estimated"
            band.suptitle(
                f"{name or 'flow'}: state of {flow.size:,}, {flow.parameters:,} parameters, "
                f"{flow.of}; {how}; one colour a sample in the first five"
            )
            flow.draw(band.subplots(2, 4).ravel())
        return figure

    def save(self, out: str | Path) -> tuple[Path, Path]:
        """Write the figures and the numbers into a folder; returns both paths."""
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        page, numbers = folder / "analysis.png", folder / "analysis.json"
        text = json.dumps(self.numbers(), indent=1, allow_nan=False)
        numbers.write_text(text + "\n", encoding="utf-8", newline="\n")
        self.figure().savefig(page, dpi=110)
        return page, numbers


def _one_legend(ax: Any) -> None:
    """Each label once, however many samples have it."""
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(reversed(labels), reversed(handles), strict=True))
    if once:
        ax.legend(list(once.values())[::-1], list(once)[::-1], fontsize=7)
