"""The shortest case for weights that move: learn x ↦ −x on the line, in ten Euler steps.

With constant weights the ten steps are one map applied ten times. If that were one-to-one it would
rise or fall throughout, and ten times it would rise: x ↦ −x is out of reach, and the best is to
send every point to 0, a mean squared error of 1/3. With weights that move, one step may turn the
line around while the others don't.

What crosses here are steps, not solutions: on the line no continuous flow reverses order, whether
its weights move or not. So the learned field is also solved with a hundred times as many steps, and
its trajectories no longer cross.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import nanode
from nanode.analysis.drawing import new_figure

FOLDER = Path("out/demo")
STEPS, FINE = 10, 1000


def make_field(basis: nanode.Basis) -> nanode.TimeVarying:
    """A small network on the line."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    return nanode.TimeVarying(module, basis=basis)


def fit(field: nanode.Field) -> None:
    """Train ten Euler steps of the field to x ↦ −x on [−1, 1]."""
    block = nanode.ODEBlock(field, steps=STEPS)
    x = torch.linspace(-1, 1, 65)[:, None]
    optimizer = torch.optim.Adam(block.parameters(), lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        (block(x) + x).square().mean().backward()
        optimizer.step()


@torch.no_grad()
def paths(field: nanode.Field, steps: int, starts: int = 65) -> tuple[Tensor, Tensor]:
    """Times, and where equidistant starting points are at them: (steps + 1, starts)."""
    times = torch.linspace(0, 1, steps + 1)
    x = torch.linspace(-1, 1, starts)[:, None]
    states: Tensor = nanode.odeint(field, x, at=[k / steps for k in range(steps + 1)])
    return times, states[..., 0]


def error(states: Tensor) -> float:
    """The mean squared error of x(1) as −x(0)."""
    return float((states[-1] + states[0]).square().mean())


def draw(panels: dict[str, tuple[nanode.Field, int]], path: Path) -> None:
    """Trajectories of each solve, side by side."""
    figure = new_figure(11, 3.6)
    from matplotlib import colormaps

    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (name, (field, steps)) in zip(axes, panels.items(), strict=True):
        times, states = paths(field, steps, starts=13)
        for n, line in enumerate(axis.plot(times, states)):
            line.set_color(colormaps["coolwarm"](n / 12))
        axis.set_title(name)
        axis.set_xlabel("t")
    axes[0].set_ylabel("x(t)")
    axes[0].set_ylim(-2, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Fit both fields, print their errors and save the picture."""
    torch.set_num_threads(1)  # the networks are tiny
    still, moving = make_field(nanode.Constant()), make_field(nanode.Trigonometric(order=10))
    fit(still)
    fit(moving)
    panels: dict[str, tuple[nanode.Field, int]] = {
        f"constant weights, {STEPS} steps": (still, STEPS),
        f"trigonometric weights, {STEPS} steps": (moving, STEPS),
        f"the same weights, {FINE} steps": (moving, FINE),
    }
    print("Learning x ↦ −x on [−1, 1]; mean squared error of")
    for name, (field, steps) in panels.items():
        print(f"  {name:32} {error(paths(field, steps)[1]):.1e}")
    print("Sending every point to 0 gives    3.4e-01, the best that constant weights can do here,")
    print(
        "and the best that any weights can do when the steps are fine: flows on a line keep order."
    )
    path = FOLDER / "crossing.png"
    draw(panels, path)
    print(f"Trajectories: {path}")
