"""What the paper and others report, typed in once.

Source of the tables: "Time Dependence in Non-Autonomous Neural ODEs" (2020), Table 1 ("Comparison
of various architectures for CIFAR-10 and CIFAR-100 image classification tasks", mean of 3 runs),
Table 2, and the text around them.
"""

from dataclasses import dataclass

from nanode.reports.claims import Claim
from nanode.reports.statistics import Spread

CITATION = "*Time Dependence in Non-Autonomous Neural ODEs* (2020), Table 1, mean of 3 runs"

#: Test accuracies on CIFAR-10 / CIFAR-100, as the authors of each report them.
PEERS = (
    "94.2 / 73.95 (NODE18 trained by ACA), 93.69 / – with 1.63 M parameters (StatefulOdeNets), "
    "93.29 / – with 0.86 M and – / 78.45 with 13.6 M (ContinuousNet)"
)
#: Table 2: −ELBO on Moving MNIST and BAIR, activation and parameter memory in GB.
TABLE2 = {
    "svg": (2.2e-5, 9.5e-5, 4.9, 4.6e-3),
    "svg-auto": (3.3e-5, 9.0e-5, 4.7, 4.6e-3),
    "svg-nanode": (8.5e-6, 7.6e-5, 4.7, 1.9e-2),
}


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's Table 1."""

    #: Test accuracy in per cent.
    cifar10: float
    cifar100: float
    #: Gigabytes.
    activations: float
    parameters: float

    def accuracy(self, data: str) -> float | None:
        """On a data set that the paper has."""
        found: float | None = getattr(self, data, None)
        return found


TABLE1 = {
    "auto": PaperRow(82.98, 50.33, 0.3, 2.8e-4),
    "appnode": PaperRow(83.20, 60.68, 0.3, 2.8e-4),
    "con-resnet": PaperRow(82.35, 54.69, 3.0, 2.8e-4),
    "uncon-resnet": PaperRow(86.72, 60.91, 3.0, 2.8e-3),
    "b-nanode-10": PaperRow(84.38, 51.66, 0.3, 2.8e-3),
    "t-nanode-10": PaperRow(90.10, 66.49, 0.3, 5.6e-3),
    "b-nanode-100": PaperRow(93.22, 64.06, 0.3, 2.8e-2),
}

#: What the paper says of these models' accuracy, and what its table shows.
CLAIMS = (
    Claim("T-NANODE-10 outperforms Auto", ("t-nanode-10",), ("auto",)),
    Claim("T-NANODE-10 outperforms AppNODE", ("t-nanode-10",), ("appnode",)),
    Claim("T-NANODE-10 outperforms ANODE, a neural ODE before it", ("t-nanode-10",), ("anode",)),
    Claim("T-NANODE-10 outperforms the constrained ResNet", ("t-nanode-10",), ("con-resnet",)),
    Claim("T-NANODE-10 outperforms the unconstrained ResNet", ("t-nanode-10",), ("uncon-resnet",)),
    Claim("T-NANODE-10 outperforms B-NANODE-10", ("t-nanode-10",), ("b-nanode-10",)),
    Claim("B-NANODE-10 outperforms Auto", ("b-nanode-10",), ("auto",)),
    Claim("B-NANODE-10 stays behind the unconstrained ResNet", ("uncon-resnet",), ("b-nanode-10",)),
    Claim("appended time helps: AppNODE outperforms Auto", ("appnode",), ("auto",)),
    Claim(
        "the unconstrained ResNet outperforms the constrained one",
        ("uncon-resnet",),
        ("con-resnet",),
    ),
    Claim(
        "depth pays: B-NANODE-100 outperforms the unconstrained ResNet",
        ("b-nanode-100",),
        ("uncon-resnet",),
    ),
    Claim(
        "polynomial weights are harder to train: 5 coefficients stay behind T-NANODE-10's 21",
        ("t-nanode-10",),
        ("monomial-5", "chebyshev-5", "legendre-5"),
    ),
    Claim(
        "buckets and waves are the two best variants: B-NANODE-10 outperforms the others",
        ("b-nanode-10",),
        ("monomial-5", "chebyshev-5", "legendre-5", "rff-20", "hyper", "gated-2"),
    ),
    Claim("hypernetworks bring nothing over Auto", ("auto",), ("hyper",), ties=True),
    Claim("gated fields bring nothing over Auto", ("auto",), ("gated-2",), ties=True),
)


def table1_accuracy(data: str) -> dict[str, Spread | None]:
    """The paper's own column, to judge its claims by."""
    rows = {name: row.accuracy(data) for name, row in TABLE1.items()}
    return {name: None if value is None else Spread(value, None, 3) for name, value in rows.items()}
