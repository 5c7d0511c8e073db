"""The runs of Table 1: every model by one shared recipe, and at its own best rate and scale.

    table1/<data>/shared/<model>/seed<n>   one recipe for all
    table1/<data>/select/<model>/lr<x>     candidates, compared on held-out images, never tested
    table1/<data>/select/<model>/lr<x>-scale<s>
    table1/<data>/select-long/<model>/…              the same, trained for as long as a longer run
    table1/<data>/own/<model>/<candidate>/seed<n>    the chosen one, unless it is the shared recipe
    table1/<data>/constant-memory/<model>/<candidate>/seed<n>   the same by an invertible solver
    table1/<data>/long/<model>/<candidate>/seed<n>   the same for 45 epochs, on all training images

Choices are made on CIFAR-10 and used on CIFAR-100 too, where the longer runs of two rows are also
made at what is chosen there. The folders of what follows from choices name the candidate:
where another one is chosen later, it doesn't meet the runs of the first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanode.experiments.plan import Options, Planned, configured, read_recipe
from nanode.experiments.selection import ALL_FAILED, Candidate, Round, best, is_open
from nanode.reports.records import find_record
from nanode.training import TrainConfig

#: The paper's rows, K = 10 evaluations, then the one with K = 100.
PAPER = ("auto", "appnode", "con-resnet", "uncon-resnet", "b-nanode-10", "t-nanode-10")
DEEP = "b-nanode-100"
#: Rows that the paper mentions, one seed each. Polynomials of degree 4, as in its figure; as many
#: random features as T-10 has waves. And T-10 at base frequency 2π, whose waves are orthogonal.
OTHERS = (
    "anode",
    "monomial-5",
    "chebyshev-5",
    "legendre-5",
    "rff-20",
    "hyper",
    "gated-2",
    "t-nanode-10-periodic",
)
MODELS = (*PAPER, DEEP, *OTHERS)
#: The untied ResNet is what the paper sets B-100 beside.
LONG = ("uncon-resnet", "t-nanode-10", DEEP)
#: Of these, what is chosen anew on every other data set than the main one, by recipe of the
#: candidates. Those that train as briefly as the shared column came first: what they chose was the
#: worse for 45 epochs, so that the ResNet was left out there.
RECHOSEN = {"table1": ("t-nanode-10",), "table1-long": ("uncon-resnet", "t-nanode-10")}
PROFILED = "t-nanode-10"
#: The row that is trained once more by exact gradients at constant memory.
INVERTED = "t-nanode-10"
INVERTIBLE = {"options.solver": "coupled-euler", "options.gradient": "reversal"}
#: Learning rates to choose from; the shared one is among them.
RATES = (0.1, 0.4, 1.0, 2.5)
#: Tried at the best learning rate. A row's own is 1, or 10 for residual networks: the number of
#: steps, with which steps are whole. It is where the scales end, for the deep row at 100.
SCALES = (1.0, 3.0, 10.0)
DEEPER_SCALES = (30.0, 100.0)
#: Candidates of the deep row train for fewer epochs than its final runs, which take ten times as
#: long as the others'.
DEEP_EPOCHS = 4


def table1_runs(options: Options, root: Path | None = None) -> list[Planned]:
    """The shared column, then candidates, then what their records decide."""
    runs = [*_shared(options)]
    for model in tuned(options):
        runs += candidates(model, options, root).values()
    for model in tuned(options):
        runs += _own(model, options, root)
    runs += _inverted(options, root)
    for model in LONG:
        runs += _long(model, options, root)
    for model, grid in rechosen(options):
        runs += _rechosen(model, grid, options, root)
    return list({run.name: run for run in runs}.values())


def tuned(options: Options) -> tuple[str, ...]:
    """The rows of the own-best column."""
    return (*PAPER, DEEP) if options.budget == "short" else (*PAPER, *OTHERS, DEEP)


# ---- the shared column


def shared(model: str, data: str, options: Options, seed: int = 0) -> Planned:
    """A run by the shared recipe."""
    profile = _profiled(model, data, options, seed)
    config = _config("table1", model, data, options, {"seed": seed, "profile": profile})
    return Planned(f"table1/{data}/shared/{model}/seed{seed}", config)


def _profiled(model: str, data: str, options: Options, seed: int = 0) -> bool:
    """One run of a column tells the flow's share: timing it takes as long as compiling."""
    return (model, data, seed) == (PROFILED, options.main, 0)


def _shared(options: Options) -> Iterator[Planned]:
    """Seed by seed, so that an early stop leaves every row of the paper with its first seed."""
    for seed in range(options.seeds):
        for data in options.sets:
            yield from (shared(model, data, options, seed) for model in PAPER)
    for model in (*OTHERS, DEEP):
        yield from (shared(model, data, options) for data in options.sets)


def _config(
    name: str, model: str, data: str, options: Options, changes: dict[str, Any]
) -> TrainConfig:
    return configured(name, options, model, data, 100 if model == DEEP else 10, changes)


# ---- the own-best column


@dataclass(frozen=True)
class Grid:
    """Where a row's candidates are trained: on which data set, and by which recipe."""

    data: str
    recipe: str = "table1"


def candidates(model: str, options: Options, root: Path | None, grid: Grid | None = None) -> Round:
    """What a row's choice is made from: four learning rates, then other scales at the best.

    On the main data set by the shared column's recipe, unless another grid is given.
    """
    grid = grid or Grid(options.main)
    found = {c: _candidate(c, model, grid, options) for c in map(Candidate, RATES)}
    if (chosen := best(found, root)) is not None:
        scaled = _rescaled(model, chosen.lr)
        found |= {c: _candidate(c, model, grid, options) for c in scaled}
    return found


def _rescaled(model: str, lr: float) -> list[Candidate]:
    """The other scales that are tried for a row, at one learning rate."""
    return [Candidate(lr, scale) for scale in scales_of(model) if scale != scale_of(model)]


def scales_of(model: str) -> tuple[float, ...]:
    """All that are tried for a row, its own included."""
    return (*SCALES, *DEEPER_SCALES) if model == DEEP else SCALES


def scale_of(model: str) -> float:
    """A row's own scale: residual networks take whole steps, ten of them."""
    return 10.0 if model.endswith("resnet") else 1.0


def choice(
    model: str, options: Options, root: Path | None, grid: Grid | None = None
) -> Candidate | None:
    """A row's best candidate on held-out images; None while it is open, or if all failed."""
    found = candidates(model, options, root, grid)
    return best(found, root) if len(found) > len(RATES) else None


def undecided(model: str, options: Options, root: Path, grid: Grid | None = None) -> bool:
    """Whether a run is still to come that decides a row's choice."""
    return is_open(candidates(model, options, root, grid), root)


def no_choice(model: str, options: Options, root: Path, grid: Grid | None = None) -> str:
    """Why a row has none."""
    return "choice still open" if undecided(model, options, root, grid) else ALL_FAILED


def best_so_far(model: str, options: Options, root: Path) -> Candidate | None:
    """Of the candidates that are over, also of scales at what was the best rate once."""
    grid = Grid(options.main)
    runs = {c: _candidate(c, model, grid, options) for c in every_candidate(model)}
    return best({c: run for c, run in runs.items() if find_record(root, run.name)}, root)


def every_candidate(model: str) -> list[Candidate]:
    """All that may be tried for a row, whichever rate is best."""
    return [c for lr in RATES for c in (Candidate(lr), *_rescaled(model, lr))]


def is_shared(candidate: Candidate, options: Options) -> bool:
    """Whether a candidate is the shared recipe."""
    name = "table1-tiny" if options.tiny else "table1"
    return candidate == Candidate(lr=read_recipe(name).optimizer.lr)


def _candidate(candidate: Candidate, model: str, grid: Grid, options: Options) -> Planned:
    brief = grid.recipe == "table1"
    if brief and is_shared(candidate, options) and model != DEEP:
        return shared(model, grid.data, options)  # whose held-out images serve as well
    changes = {"test": False} | candidate.changes()
    if model == DEEP and not options.tiny:
        changes["epochs"] = DEEP_EPOCHS
    config = _config(grid.recipe, model, grid.data, options, changes)
    stage = "select" if brief else "select-long"
    return Planned(f"table1/{grid.data}/{stage}/{model}/{candidate}", config)


def own(
    model: str, data: str, options: Options, root: Path | None, seed: int = 0
) -> Planned | None:
    """A row's run at its own best, which may be the shared one; None without a choice."""
    chosen = choice(model, options, root)
    if chosen is None:
        return None
    if is_shared(chosen, options):
        return shared(model, data, options, seed)
    config = _config("table1", model, data, options, chosen.changes() | {"seed": seed})
    return Planned(f"{folder_of('own', model, data, chosen)}/seed{seed}", config)


def folder_of(stage: str, model: str, data: str, chosen: Candidate) -> str:
    """Where the runs of a chosen candidate are, a folder a seed."""
    return f"table1/{data}/{stage}/{model}/{chosen}"


def _own(model: str, options: Options, root: Path | None) -> Iterator[Planned]:
    if left_to_longer(model, options):
        return
    seeds = options.seeds if options.budget == "full" and model in PAPER else 1
    for seed in range(seeds):
        for data in options.sets:
            if (run := own(model, data, options, root, seed)) is not None:
                yield run


def left_to_longer(model: str, options: Options) -> bool:
    """The deep row's longer run says more than a short one, and takes long enough."""
    return model == DEEP and options.budget == "short"


# ---- constant memory


def _inverted(options: Options, root: Path | None) -> Iterator[Planned]:
    """One row at its own best, with as many evaluations, by a solver that can be undone."""
    chosen = choice(INVERTED, options, root)
    if chosen is None:
        return
    changes = chosen.changes() | INVERTIBLE
    if options.tiny:
        changes["options.steps"] = 4  # of two evaluations each
    config = _config("table1", INVERTED, options.main, options, changes)
    folder = folder_of("constant-memory", INVERTED, options.main, chosen)
    yield Planned(f"{folder}/seed0", config)


# ---- longer runs


def _long(model: str, options: Options, root: Path | None) -> Iterator[Planned]:
    chosen = choice(model, options, root)
    if chosen is None:
        return
    yield from (_longer(model, data, options, chosen) for data in options.sets)


def _longer(model: str, data: str, options: Options, chosen: Candidate) -> Planned:
    """All choices are made: what was held out for them is trained on."""
    profile = _profiled(model, data, options)
    changes = chosen.changes() | {"validation": 0, "profile": profile}
    config = _config("table1-long", model, data, options, changes)
    return Planned(f"{folder_of('long', model, data, chosen)}/seed0", config)


def rechosen(options: Options) -> list[tuple[str, Grid]]:
    """Rows whose longer run is also made at another data set's own choice, and where it's made."""
    others = [data for data in options.sets if data != options.main]
    return [
        (model, Grid(data, recipe))
        for recipe, models in RECHOSEN.items()
        for model in models
        for data in others
    ]


def _rechosen(model: str, grid: Grid, options: Options, root: Path | None) -> Iterator[Planned]:
    """The candidates there, and the longer run of the best, unless it is planned already."""
    yield from candidates(model, options, root, grid).values()
    if (chosen := choice(model, options, root, grid)) is not None:
        yield _longer(model, grid.data, options, chosen)
