"""The rows of the paper's Table 1, and those it mentions: each a rule that makes a flow's field.

A name with ``-D`` takes a number: ``b-nanode-10`` has ten buckets. For polynomials D counts
coefficients, as in the paper (``chebyshev-4`` has degree 3), for waves the order. Waves have the
paper's base frequency, 1, at which they nearly depend on each other over [0, 1]; with ``-periodic``
behind the name it is 2π. With ``-orthogonal`` behind it every convolution is a product of
Householder reflections; with ``-independent`` all coefficients start at random, as in the paper's
figure of Chebyshev weights.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from nanode.bases import (
    Basis,
    Bucketed,
    Chebyshev,
    Constant,
    Legendre,
    Monomial,
    RandomFourier,
    Trigonometric,
)
from nanode.fields import Autonomous, Field, Gated, TimeAppended, TimeVarying
from nanode.trajectories import Form, Householder, Hypernetwork, Independent, Start
from nanode.values import checked_count, nearest


@dataclass(frozen=True)
class Setting:
    """What a row is made for: a network of a width, the steps of its solve, and choices."""

    #: Makes a fresh network on so many channels.
    make: Callable[[int], nn.Module]
    width: int
    steps: int
    #: Whether the affine parameters of norms move with the other weights.
    moving_norms: bool = True

    @property
    def overrides(self) -> Mapping[str, None]:
        """What stays constant in time."""
        if self.moving_norms:
            return {}
        norms = [
            name
            for name, part in self.make(self.width).named_modules()
            if name and not isinstance(part, nn.Conv2d) and any(True for _ in part.parameters())
        ]
        return dict.fromkeys(norms)


@dataclass(frozen=True)
class Flow:
    """A field, and how a block runs it."""

    field: Field
    #: A residual step has no dt: Euler with the step scaled by the number of steps.
    residual: bool = False
    #: Zero channels appended to the state.
    augment: int = 0


Row = Callable[[Setting, int, Form | None], Flow]
_ROWS: dict[str, Callable[[Setting, int], Flow]] = {}


def row(name: str) -> Callable[[Row], Row]:
    """Register a row under a name, and its orthogonal variant; ``-D`` stands for a number."""

    def register(rule: Row) -> Row:
        assert name not in _ROWS, f"two rows are called {name}"
        _ROWS[name] = lambda setting, d: rule(setting, d, None)
        _ROWS[f"{name}-orthogonal"] = lambda setting, d: rule(setting, d, Householder())
        return rule

    return register


def names() -> list[str]:
    """Every name, with ``-D`` where a number goes."""
    return list(_ROWS)


def make_flow(name: str, setting: Setting) -> Flow:
    """The flow of a row, by name."""
    match = re.fullmatch(r"(.+)-(0|[1-9][0-9]*)((?:-[a-z]+)*)", name)  # a row has one name
    pattern = f"{match[1]}-D{match[3]}" if match else name
    if name in _ROWS and "-D" not in name:
        return _ROWS[name](setting, 0)
    if match and pattern in _ROWS:
        number = checked_count(f"the number in {name!r}", int(match[2]), least=1)
        return _ROWS[pattern](setting, number)
    if name in _ROWS:
        such = name.replace("-D", "-10")
        raise ValueError(f"D in {name!r} stands for a number; give one, such as {such!r}")
    near = nearest(pattern, _ROWS) or nearest(f"{name}-D", _ROWS)
    raise ValueError(f"model must be one of {', '.join(_ROWS)}; got {name!r}{near}")


def buckets_of(name: str) -> int:
    """How many pieces in time a row's weights have, each of which wants a step.

    >>> buckets_of("b-nanode-100"), buckets_of("t-nanode-10")
    (100, 1)
    """
    found = re.match(r"b-nanode-(\d+)", name)
    return int(found[1]) if found else 1


def warn_of_unused_buckets(name: str, steps: int, cost: int) -> None:
    """Say that some of a row's weights never act, where a flow takes fewer steps than buckets."""
    if steps < (buckets := buckets_of(name)):
        warnings.warn(
            f"{name} takes {steps} steps: of its {buckets} buckets no more than that are ever "
            f"used; steps={buckets * cost} (evaluations) uses all",
            stacklevel=5,  # whoever made the model
        )


#: Makes the basis of a row with so many parts.
Family = Callable[[int], Basis]


@dataclass(frozen=True)
class Moving:
    """A row whose weights move in a family of bases."""

    family: Family
    start: Start | None = None

    def __call__(self, setting: Setting, d: int, form: Form | None) -> Flow:
        """Its flow with so many parts."""
        field = TimeVarying(
            setting.make(setting.width),
            self.family(d),
            start=self.start,
            overrides=setting.overrides,
            orthogonal=form,
        )
        return Flow(field)


def _polynomial(family: Family) -> Family:
    """Polynomials by their number of coefficients."""
    return lambda d: family(d - 1) if d > 1 else Constant()


def _still(module: nn.Module, form: Form | None) -> Field:
    """Constant weights, or constant orthogonal ones."""
    return Autonomous(module) if form is None else TimeVarying(module, Constant(), orthogonal=form)


@row("auto")
def auto(setting: Setting, _: int, form: Form | None) -> Flow:
    """Constant weights."""
    return Flow(_still(setting.make(setting.width), form))


@row("appnode")
def appnode(setting: Setting, _: int, form: Form | None) -> Flow:
    """Constant weights, t appended to the input of every convolution."""
    field = TimeAppended(setting.make(setting.width))
    if form is None:
        return Flow(field)
    # Of [W, w_t] the part that acts on x is orthogonal.
    return Flow(TimeVarying(field.module, Constant(), orthogonal={"*.layer.weight": form}))


@row("anode")
def anode(setting: Setting, _: int, form: Form | None) -> Flow:
    """Constant weights on a state with a sixteenth more channels, zero at the start."""
    augment = max(1, setting.width // 16)
    return Flow(_still(setting.make(setting.width + augment), form), augment=augment)


@row("con-resnet")
def con_resnet(setting: Setting, _: int, form: Form | None) -> Flow:
    """A residual network whose layers share their weights."""
    return Flow(_still(setting.make(setting.width), form), residual=True)


@row("uncon-resnet")
def uncon_resnet(setting: Setting, _: int, form: Form | None) -> Flow:
    """A residual network: weights and norms of its own in every layer, drawn independently."""
    module, basis = setting.make(setting.width), Bucketed(setting.steps)
    return Flow(TimeVarying(module, basis, start="untied", orthogonal=form), residual=True)


#: Weights in d buckets; of order d at the paper's base frequency, 1, or at 2π; in d features and a
#: constant; in polynomials with d coefficients.
FAMILIES: dict[str, Family] = {
    "b-nanode-D": Bucketed,
    "t-nanode-D": Trigonometric,
    "t-nanode-D-periodic": lambda order: Trigonometric(order, frequency=2 * math.pi),
    "rff-D": RandomFourier,
    "monomial-D": _polynomial(Monomial),
    "chebyshev-D": _polynomial(Chebyshev),
    "legendre-D": _polynomial(Legendre),
}
for _name, _family in FAMILIES.items():
    row(_name)(Moving(_family))
row("chebyshev-D-independent")(Moving(FAMILIES["chebyshev-D"], Independent()))


@row("hyper")
def hyper(setting: Setting, _: int, form: Form | None) -> Flow:
    """Each weight a shared small network's output at its embedding and t."""
    module = setting.make(setting.width)
    field = TimeVarying(module, weights=Hypernetwork, overrides=setting.overrides, orthogonal=form)
    return Flow(field)


@row("gated-D")
def gated(setting: Setting, d: int, form: Form | None) -> Flow:
    """d autonomous fields mixed by sigmoid gates of t."""
    return Flow(Gated([_still(setting.make(setting.width), form) for _ in range(d)]))
