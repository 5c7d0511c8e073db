"""The paper's tables and figures as plans of runs, carried out over as many calls as it takes.

python -m nanode.experiments table1 --root runs --minutes 60
python -m nanode.experiments table1 --root runs --report results
"""

from nanode.experiments.chebyshev import FigureChebyshev
from nanode.experiments.execution import Outcome, over, reproduce
from nanode.experiments.figure_video import FigureVideo
from nanode.experiments.fitted_orders import OrderTrain
from nanode.experiments.memory import Memory
from nanode.experiments.orthogonal import FigureOrthogonal
from nanode.experiments.plan import Experiment, Options, Planned
from nanode.experiments.staged import Staged
from nanode.experiments.table1 import Table1
from nanode.experiments.table2 import Table2
from nanode.experiments.tested_orders import OrderTest
from nanode.experiments.tradeoff import Tradeoff

#: Every experiment by its name.
EXPERIMENTS: dict[str, Experiment] = {
    "table1": Table1(),
    "table2": Table2(),
    "staged": Staged(),
    "figure-order-train": OrderTrain(),
    "figure-order-test": OrderTest(),
    "figure-chebyshev": FigureChebyshev(),
    "figure-orthogonal": FigureOrthogonal(),
    "figure-video": FigureVideo(),
    "tradeoff": Tradeoff(),
    "memory": Memory(),
}

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Options",
    "Outcome",
    "Planned",
    "over",
    "reproduce",
]
