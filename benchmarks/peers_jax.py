"""diffrax: the same block in JAX, whole solves compiled by XLA.

A compiled gradient has no seam between forward and backward. The forward time is that of the solve
alone, the total that of ``value_and_grad``, the backward time their difference.
"""

import time
from collections.abc import Mapping
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from measure import WARM_UP, peak_resident, summarise
from problem import EPS, GROUPS, ORDER, Case

ADJOINTS = {
    "diffrax-backsolve": diffrax.BacksolveAdjoint,
    "diffrax-checkpoint": diffrax.RecursiveCheckpointAdjoint,
}


def normalise(x: jax.Array, weight: jax.Array, bias: jax.Array, norm: str) -> jax.Array:
    """Statistics in float32 at least, as PyTorch's kernels do; the result in the dtype of x."""
    h = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if norm == "group":
        h = h.reshape(x.shape[0], GROUPS, -1)
        axes: tuple[int, ...] = (2,)
    else:
        axes = (0, 2, 3)
    mean = h.mean(axes, keepdims=True)
    variance = jnp.square(h - mean).mean(axes, keepdims=True)
    h = ((h - mean) * lax.rsqrt(variance + EPS)).reshape(x.shape)
    h = h * weight[:, None, None].astype(h.dtype) + bias[:, None, None].astype(h.dtype)
    return h.astype(x.dtype)


def field(t: jax.Array, x: jax.Array, parameters: Mapping[str, jax.Array], case: Case) -> jax.Array:
    angles = jnp.arange(1, ORDER + 1, dtype=x.dtype) * t
    z = jnp.concatenate([jnp.ones(1, x.dtype), jnp.cos(angles), jnp.sin(angles)])
    w = dict(parameters)
    for name, shape in case.moving.items():
        w[name] = jnp.matmul(z, w[name], precision=lax.Precision.HIGHEST).reshape(shape)
    w = {name: weight.astype(case.dtype) for name, weight in w.items()}
    h = x.astype(case.dtype)
    for i, padding in ((1, 0), (2, 1), (3, 0)):
        h = normalise(h, w[f"norm{i}.weight"], w[f"norm{i}.bias"], case.norm)
        h = lax.conv_general_dilated(
            jax.nn.relu(h),
            w[f"conv{i}.weight"],
            window_strides=(1, 1),
            padding=[(padding, padding)] * 2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )
    return h.astype(x.dtype)


def measure(
    system: str, case: Case, arrays: Mapping[str, np.ndarray], steps: int, repeats: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The row's numbers, and the gradients at the shared input."""
    dtype = case.state_dtype
    names = [*case.moving, *case.constant]
    parameters = {n: jnp.asarray(arrays[n], dtype) for n in names}
    cotangent = jnp.asarray(arrays["cotangent"], dtype)
    term = diffrax.ODETerm(lambda t, x, args: field(t, x, args, case))

    def solve(x: jax.Array, parameters: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        solution = diffrax.diffeqsolve(
            term,
            diffrax.Euler(),
            t0=0.0,
            t1=1.0,
            dt0=1 / steps,
            y0=x,
            args=parameters,
            max_steps=steps,
            adjoint=ADJOINTS[system](),
        )
        return solution.ys[0], solution.stats["num_steps"]

    def loss(x: jax.Array, parameters: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, evaluations = solve(x, parameters)
        return (y * cotangent).sum(), evaluations

    x0 = jnp.asarray(arrays["x0"], dtype)
    # Read before anything large has run: XLA's high-water mark can't be reset.
    device = jax.devices()[0]
    before = (device.memory_stats() or {}).get("bytes_in_use")
    forward_only = jax.jit(solve).lower(x0, parameters).compile()
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    gradient = gradient.lower(x0, parameters, cotangent).compile()
    keys = iter(jax.random.split(jax.random.key(0), 2 * (WARM_UP + repeats) + 1))

    def fresh() -> jax.Array:
        return jax.random.normal(next(keys), case.state_shape, dtype).block_until_ready()

    def timed(call: Any, x: jax.Array, *rest: Any) -> float:
        start = time.perf_counter()
        jax.block_until_ready(call(x, *rest))
        return time.perf_counter() - start

    forward, total = [], []
    for _ in range(WARM_UP + repeats):
        total.append(timed(gradient, fresh(), parameters, cotangent))
        forward.append(timed(forward_only, fresh(), parameters))
    row: dict[str, Any] = summarise(forward[WARM_UP:], total[WARM_UP:])

    x = fresh()
    if before is None:
        row["peak_bytes"], row["memory"] = peak_resident(
            lambda: jax.block_until_ready(gradient(x, parameters, cotangent))
        )
    else:
        peak = device.memory_stats()["peak_bytes_in_use"]
        row["peak_bytes"] = peak - before - x.nbytes  # the input is not the method's
        row["memory"] = "XLA peak_bytes_in_use over the process"

    plan = gradient.memory_analysis()
    row["planned_bytes"] = plan and plan.temp_size_in_bytes + plan.output_size_in_bytes

    (_, evaluations), (g_x0, g_parameters) = gradient(x0, parameters, cotangent)
    row["evaluations"] = int(evaluations)
    gradients = {"x0": g_x0, **g_parameters}
    return row, {n: np.asarray(g, dtype=np.float64) for n, g in gradients.items()}
