"""Table 1 as a page: accuracies beside the paper's, its claims judged, how each row was run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanode.reports.claims import NOT_MEASURED, WORDS, Claim, judge, verdict
from nanode.reports.markdown import table, write_page
from nanode.reports.paper import CITATION, CLAIMS, TABLE1, table1_accuracy
from nanode.reports.records import Cell
from nanode.reports.settings import held_out, provenance, settings, settings_table
from nanode.reports.statistics import Noise, pooled
from nanode.training import RunRecord

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "digits"}


@dataclass(frozen=True)
class Column:
    """One way of training every row: its cells by data set and model."""

    title: str
    #: What all of its runs have in common, in a sentence or two.
    about: str
    cells: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)

    def cell(self, data: str, model: str) -> Cell:
        """An empty one where nothing was run."""
        return self.cells.get(data, {}).get(model, Cell())

    def begun(self, data: str) -> bool:
        """Whether there is anything to show for a data set."""
        return any(cell.records for cell in self.cells.get(data, {}).values())


@dataclass(frozen=True)
class Choice:
    """What a row's own learning rate and scale were chosen from."""

    model: str
    #: Validation accuracy in per cent by candidate, in words where there is none.
    candidates: Mapping[str, str]
    #: The chosen candidate, or why there is none.
    chosen: str
    #: The candidates' records.
    records: Sequence[RunRecord] = ()
    #: Of rate and scale, those of which no smaller or no larger one was tried than the chosen.
    edges: Sequence[str] = ()


def write_table1(
    path: Path,
    columns: Sequence[Column],
    models: Sequence[str],
    sets: Sequence[str],
    choices: Sequence[Choice],
    still: str = "",
    further: Sequence[str] = (),
) -> Path:
    """Write the page; ``still`` says which runs are to come."""
    parts = [
        "Test accuracy in per cent, mean ± sample standard deviation over the seeds named behind "
        f"it; a single seed has no spread. The paper's figures: {CITATION}. It doesn't say how "
        "long it trained, so columns are to be compared in themselves, not with its figures.",
        "\n".join(f"- **{column.title}**: {column.about}" for column in columns),
        ROWS,
        still,
        *(_accuracies(columns, models, data) for data in sets),
        *_claims(columns, sets),
        _memory(columns, models, sets),
        _choices(choices),
        *further,
        *(_settings(column, models, sets) for column in columns),
    ]
    return write_page(path, "Table 1: image classification", parts)


#: What some rows are, that a comparison of them must know.
ROWS = (
    "What to know of the rows:\n\n"
    "- At the same scale auto *is* con-resnet, and b-nanode-10 is uncon-resnet but for the start "
    "of its weights. What is said of one against the other is about scales, starts and the "
    "settings tried, not about two networks. A residual network takes whole steps, which is scale "
    "10 at K = 10.\n"
    "- In appnode every convolution is followed by a norm over the batch, which takes off again "
    "what appended time adds to a channel. t acts where a 3×3 convolution meets the border of the "
    "image, and nowhere else. The row is auto but for that, and says little of appended time in "
    "networks without such norms.\n"
    "- In hyper a weight's embedding is one number, at the start the weight itself, and the shared "
    "network's output is damped to what a learning rate for weights allows. On digits such weights "
    "move by 0.3 to 1 % of their size, those of t-nanode-10 by 70 %: the row is nearly auto, and "
    "says little of hypernetworks that are made to move.\n"
    "- Norms have statistics for each evaluation, so that by stored statistics even the flow of "
    "auto depends on time.\n"
    "- Images/s depend on the code that serves a row. Kernels made for the bottleneck serve most "
    "at full speed, anode's wider layers well below it, and appnode's layers, which take t, not at "
    "all. So these numbers don't judge the paper's claim to be faster than earlier neural ODEs: "
    "at as many evaluations rows do nearly the same arithmetic, anode 13 % more and gated-2 twice "
    "as much."
)


def _accuracies(columns: Sequence[Column], models: Sequence[str], data: str) -> str:
    """The paper's rows and others that were run, in the columns that were begun."""
    shown = [column for column in columns if column.begun(data)]
    if not shown:
        return f"## {TITLES[data]}\n\nNo run is over yet."
    rows = []
    for model in models:
        cells = [column.cell(data, model) for column in shown]
        paper = TABLE1[model].accuracy(data) if model in TABLE1 else None
        if model in TABLE1 or any(cell.records or cell.note for cell in cells):
            rows.append([model, "–" if paper is None else f"{paper:.2f}", *cells])
    header = ["model", "paper", *(column.title for column in shown)]
    return f"## {TITLES[data]}\n\n" + table(header, rows)


def _claims(columns: Sequence[Column], sets: Sequence[str]) -> list[str]:
    """A table for each data set; claims about rows without runs are only named."""
    parts = [
        "## Which of the paper's claims held\n\n"
        "Computed from the tables above; in brackets the lead in points (a negative one means that "
        f"the order was reversed). {WORDS} A column without several seeds takes the s of the first "
        "that has them. “No lead found”, of what should bring none: it is within the spread; where "
        "it isn't, a negative number says that the other is ahead of Auto. Of rows that are alike "
        "one comparison in twenty is decided by chance, and there are dozens here."
    ]
    for data in sets:
        shown = [
            column
            for column in columns
            if any(_verdict(claim, column, data) != NOT_MEASURED for claim in CLAIMS)
        ]
        noise = {column.title: column_noise([column, *columns], data) for column in shown}
        judged = {
            claim: [_verdict(claim, column, data, noise[column.title]) for column in shown]
            for claim in CLAIMS
        }
        known = {claim: found for claim, found in judged.items() if set(found) - {NOT_MEASURED}}
        rows = [
            [claim.text, _margin(judge(claim, table1_accuracy(data)).margin), *found]
            for claim, found in known.items()
        ]
        if not rows:
            parts.append(f"None is measured on {TITLES[data]} yet.")
            continue
        header = [f"claim, {TITLES[data]}", "paper", *(column.title for column in shown)]
        parts.append(table(header, rows))
        if unknown := [claim.text for claim in CLAIMS if claim not in known]:
            parts.append(f"Not measured on {TITLES[data]} yet: {'; '.join(unknown)}.")
    return parts


def column_noise(columns: Sequence[Column], data: str) -> Noise | None:
    """What accuracies vary by in the first of these columns that has rows of several seeds."""
    found = (pooled(cell.accuracy for cell in one.cells.get(data, {}).values()) for one in columns)
    return next((noise for noise in found if noise is not None), None)


def _verdict(claim: Claim, column: Column, data: str, noise: Noise | None = None) -> str:
    models = (*claim.better, *claim.worse)
    return verdict(claim, {model: column.cell(data, model) for model in models}, noise)


def _margin(margin: float | None) -> str:
    return "no figure" if margin is None else f"{margin:+.2f}"


def _memory(columns: Sequence[Column], models: Sequence[str], sets: Sequence[str]) -> str:
    """What the flow of each row held in its own runs, beside the paper's figures."""
    header = ["model", "gradient", "parameters, GB", "paper", "activations, GB", "paper"]
    rows = []
    for model in models:
        cells = [column.cell(data, model) for column in columns for data in sets]
        known: dict[str, Mapping[str, str]] = {}  # the first by each gradient
        for record in (r for cell in cells for r in cell.records if r.costs is not None):
            found = settings([record])
            known.setdefault(found["gradient"], found)
        paper = TABLE1.get(model)
        rows += [
            [
                model,
                gradient.removeprefix("Compiled(").replace("))", ")"),
                found["parameters of the flow, GB"],
                "–" if paper is None else f"{paper.parameters:.2g}",
                _held(found),
                "–" if paper is None else f"{paper.activations:g}",
            ]
            for gradient, found in known.items()
        ]
    if not rows:
        return ""
    unfit = " Activations “–”: plain PyTorch needs more than the device has."
    noted = unfit if any(row[4] == "–" for row in rows) else ""
    return (
        "## Memory\n\n"
        "Of the flow alone, at the rows' own batch and precision, by the gradient named here as "
        "plain PyTorch keeps it; compiled runs with fused kernels hold less. Where all activations "
        "are kept (Backprop), NANODEs hold as much as residual networks; what constant memory "
        "takes is measured in a section of its own, in single precision. The paper doesn't say for "
        "which batch its activations are. For waves of order d it counts 2d coefficients, where "
        f"with a₀ there are 2d + 1; ours move the norms' affines too.{noted}\n\n"
        + table(header, rows)
    )


def _held(found: Mapping[str, str]) -> str:
    held = found["activations of the flow, GB"]
    return held if held == "–" else f"{held} (batch {found['batch']})"


def _choices(choices: Sequence[Choice]) -> str:
    if not choices:
        return ""
    rows = []
    for choice in choices:
        shown = [
            f"**{name}: {accuracy}**" if name == choice.chosen else f"{name}: {accuracy}"
            for name, accuracy in choice.candidates.items()
        ]
        edge = f" ({' and '.join(choice.edges)} at the edge)" if choice.edges else ""
        rows.append([choice.model, ", ".join(shown), f"{choice.chosen}{edge}"])
    records = [record for choice in choices for record in choice.records]
    return (
        "## How learning rates and scales were chosen\n\n"
        "By accuracy on held-out training images, in per cent; test images took no part. One run "
        f"a candidate{_error_of_a_lead(records)}. “At the edge”: no smaller, or no larger, one was "
        "tried. " + provenance(records) + "\n\n" + table(["model", "candidates", "chosen"], rows)
    )


def _error_of_a_lead(records: Sequence[RunRecord]) -> str:
    """The standard error of the difference of two such accuracies, of as many images each."""
    found = []
    for record in records:
        share = None if record.metrics is None else record.metrics.validation_accuracy
        if share is not None and (images := held_out(record)):
            found.append(100 * (2 * share * (1 - share) / images) ** 0.5)
    if not found:
        return ""
    return f": the standard error of a lead is {min(found):.2f} to {max(found):.2f} points"


def _settings(column: Column, models: Sequence[str], sets: Sequence[str]) -> str:
    rows = {
        (model, TITLES[data]): column.cell(data, model).records for data in sets for model in models
    }
    found = settings_table(rows.items(), ["model", "data"])
    return f"## How it was run: {column.title}\n\n{found}" if found else ""
