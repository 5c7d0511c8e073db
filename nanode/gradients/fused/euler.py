"""Euler by fused evaluations: all states kept, or steps undone by what they added."""

from collections.abc import Sequence

from torch import Tensor

from nanode.gradients.backprop import Backprop
from nanode.gradients.fused.bottleneck import Bottlenecks, Inner
from nanode.gradients.fused.run import Norms, Run
from nanode.kernels import activate, expand, project


def solve_euler(
    run: Run, fields: Bottlenecks, x: Tensor
) -> tuple[Tensor, list[Tensor], list[Norms]]:
    """The end, what is kept for the backward pass, and all norms."""
    kept: list[Tensor] = []
    norms: list[Norms] = []
    everything = run.keeps and isinstance(run.method, Backprop)
    bounds = run.bounds(x, fields)
    out = None
    statistics = fields.opening(x)
    for k, h in enumerate(run.widths):
        if everything or k in bounds:
            kept.append(x)
            out = None  # what is kept is not written over
        x, statistics, made = fields.forward(k, x, statistics, h, [(1.0, x)], out=out)
        norms.append(made.norms)
        if everything:
            kept += [made.first, made.second]
            continue
        out = x
        if run.keeps and not bounds:
            kept.append(made.second)
    return x, kept if everything else [*kept, x], norms


def pull_kept(
    run: Run, fields: Bottlenecks, kept: Sequence[Tensor], norms: Sequence[Norms], g: Tensor
) -> Tensor:
    """Steps pulled back, last to first, all states and products at hand."""
    out = g if run.owned else None
    for k in reversed(range(len(run.widths))):
        x, first, second = kept[3 * k : 3 * k + 3]
        active = activate(first, norms[k][1], dtype=fields.dtype)
        inner = Inner(norms[k], first, second)
        g = out = fields.pull(k, x, inner, active, g, run.widths[k], [(1.0, g)], out=out)
    return g


def pull_rewound(
    run: Run, fields: Bottlenecks, kept: Sequence[Tensor], norms: Sequence[Norms], g: Tensor
) -> Tensor:
    """Segment by segment, last to first: its second products made again if need be, then back.

    A step is undone by its own second product, x_k = x_{k+1} − h W relu(norm(second_k)): the same
    numbers that were added are subtracted, so that rounding is all that is lost, and a state costs
    what its narrow middle does.
    """
    *starts, x = kept
    steps = len(run.widths)
    bounds = run.bounds(x, fields)
    if not bounds:
        return _rewind(run, fields, 0, starts, norms, x, g)
    for n in reversed(range(len(starts))):
        end = bounds[n + 1] if n + 1 < len(bounds) else steps
        made, at, out = [], starts[n], None
        for i in range(bounds[n], end):
            w = fields.weights(i)
            h = project(at, norms[i][0], w.first, eps=None)[0]
            made.append(fields.again(i, h, norms[i])[1])
            if i + 1 < end:
                widths = run.widths[i]
                at, _, _ = expand(made[-1], norms[i][2], w.last, widths, [(1.0, at)], out=out)
                out = at
        g = _rewind(run, fields, bounds[n], made, norms, x, g)
        x = starts[n]
    return g


def _rewind(
    run: Run,
    fields: Bottlenecks,
    first: int,
    seconds: Sequence[Tensor],
    norms: Sequence[Norms],
    x: Tensor,
    g: Tensor,
) -> Tensor:
    """Steps ``first`` … undone and pulled back, from the state x that they end in."""
    x_out, g_out = (x, g) if run.owned else (None, None)
    for n in reversed(range(len(seconds))):
        i, h = first + n, run.widths[first + n]
        w, (one, two, three) = fields.weights(i), norms[i]
        x, _, product = expand(
            seconds[n], three, w.last, -h, [(1.0, x)], out=x_out, following=(one, w.first)
        )
        assert product is not None
        active = activate(product, two, dtype=fields.dtype)
        inner = Inner(norms[i], product, seconds[n])
        g = fields.pull(i, x, inner, active, g, h, [(1.0, g)], out=g_out)
        x_out, g_out = x, g
    return g
