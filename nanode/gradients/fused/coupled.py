"""Coupled Euler by fused evaluations, undone step by step: constant memory."""

from collections.abc import Sequence

from torch import Tensor

from nanode.gradients.fused.bottleneck import Bottlenecks, Inner
from nanode.gradients.fused.run import Norms, Run
from nanode.kernels import expand, project
from nanode.solvers.invertible import Coupled


def solve_coupled(
    run: Run, fields: Bottlenecks, x: Tensor
) -> tuple[Tensor, list[Tensor], list[Norms]]:
    """Coupled Euler: y ← λy + (1 − λ)z + h f(z), z ← z + h f(y).

    Nobody reads the z after the last f(y), of which only the norms are made: statistics move.
    """
    assert isinstance(run.stepper, Coupled)
    coupling = run.stepper.coupling
    assert coupling is not None
    statistics, norms = fields.opening(x), []
    y = z = x
    for k, h in enumerate(run.widths):
        # In place from the second step on: the first one's inputs may be the caller's x.
        mix = [(coupling, y), (1 - coupling, z)] if k else [(1.0, z)]
        y, found, made = fields.forward(2 * k, z, statistics, h, mix, out=y if k else None)
        norms.append(made.norms)
        if k + 1 == len(run.widths):
            if not fields.fixed:
                norms.append(fields.inside(2 * k + 1, y, found).norms)
            break
        out = z if k or run.owned else None
        z, statistics, made = fields.forward(2 * k + 1, y, found, h, [(1.0, z)], out=out)
        norms.append(made.norms)
    return y, [y, z], norms


def pull_undone(
    run: Run, fields: Bottlenecks, kept: Sequence[Tensor], norms: Sequence[Norms], g: Tensor
) -> Tensor:
    """The same backwards; gy carries its factor λ into the next accumulation."""
    assert isinstance(run.stepper, Coupled)
    coupling = run.stepper.coupling
    assert coupling is not None
    y, z = kept
    y_out, z_out = (y, z) if run.owned else (None, None)
    gy, factor = g, 1.0
    gz: Tensor | None = None  # nobody looks at the last z, which is not there
    gy_out = g if run.owned else None
    last = len(run.widths) - 1
    fields.skip(2 * last + 1)
    h1 = project(z, norms[2 * last][0], fields.weights(2 * last).first, eps=None)[0]
    for k in reversed(range(len(run.widths))):
        h, a, b = run.widths[k], 2 * k, 2 * k + 1
        if gz is not None:
            active, second = fields.again(b, h1, norms[b])
            into = (norms[a][0], fields.weights(a).first)
            matrix = fields.weights(b).last
            z, _, before = expand(
                second, norms[b][2], matrix, -h, [(1.0, z)], out=z_out, following=into
            )
            z_out = z
            inner = Inner(norms[b], h1, second)
            gy = gy_out = fields.pull(b, y, inner, active, gz, h, [(factor, gy)], out=gy_out)
            assert before is not None
            h1 = before
            del inner, active, second, before  # so that they make room for the next ones
        active, second = fields.again(a, h1, norms[a])
        inner = Inner(norms[a], h1, second)
        if k:  # nobody reads the first y
            # y' = λy + (1 − λ)z + hf, hence y = y'/λ + (1 − 1/λ)z − hf/λ.
            y, _, after = expand(
                second,
                norms[a][2],
                fields.weights(a).last,
                -h / coupling,
                [(1 / coupling, y), (1 - 1 / coupling, z)],
                out=y_out,
                following=(norms[a - 1][0], fields.weights(a - 1).first),
            )
            y_out = y
            assert after is not None
            h1 = after
        # At the first step y and z are both x, which gets all of gy.
        flowing = [(1 - coupling if k else 1.0, gy)]
        if gz is not None:
            flowing.insert(0, (1.0, gz))
        gz = fields.pull(a, z, inner, active, gy, h, flowing, out=gz)
        factor = coupling
        del inner, active, second
    assert gz is not None
    return gz
