"""What every basis must do. A test class supplies the basis and its formula, and inherits the rest.

Float64 tolerances: values 1e-12 and Gram matrices 1e-10, both relative to the largest entry: some
hundred roundings of 2e-16 each, with room for the growth of derivatives.
"""

import copy
import io
import pickle
from abc import ABC, abstractmethod
from fractions import Fraction
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch

from nanode.bases import Basis
from nanode.stages import Stage, Stages

INTERVALS = [(0.0, 1.0), (-2.0, 3.0), (0.1, 0.7)]


def close(got, expected, tolerance):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert np.abs(got - expected).max(initial=0.0) <= tolerance * scale


def uniform_stages(interval, steps):
    t0, t1 = (Fraction(end) for end in interval)
    times = [t0 + (t1 - t0) * k / steps for k in range(steps)]
    return Stages(tuple(Stage(k, k, time=float(t), start=t) for k, t in enumerate(times)))


class BasisContract(ABC):
    #: Derivatives that exist as functions, whose Gram matrices quadrature can check.
    orders: ClassVar[tuple[int, ...]] = (0, 1, 2)
    #: What happens outside the interval: the value at the end holds, or the formula goes on.
    holds = False
    #: Whether the functions themselves jump at the breakpoints, or only derivatives.
    discontinuous = False

    @abstractmethod
    def make(self, interval) -> Basis:
        """A basis on the interval."""

    @abstractmethod
    def expected(self, basis, t, m):
        """The m-th derivatives at an array t, ``(len(t), size)``, written without nanode."""

    def breaks(self, interval):
        """Times inside the interval where something jumps."""
        return ()

    @pytest.fixture(params=INTERVALS, ids=str)
    def interval(self, request):
        return request.param

    @pytest.fixture
    def basis(self, interval):
        return self.make(interval)

    @pytest.fixture
    def plain(self):
        return self.make((0.0, 1.0))

    def inside(self, interval):
        """Times inside, none of them near a jump."""
        t0, t1 = interval
        t = np.random.default_rng(0).uniform(t0, t1, 40)
        far = [abs(t - jump) > 1e-3 * (t1 - t0) for jump in self.breaks(interval)]
        return t[np.all(far, axis=0)] if far else t

    # ---- values

    def test_values_match_the_formula(self, basis, interval):
        t = np.concatenate([self.inside(interval), interval])
        close(basis(torch.from_numpy(t)), self.expected(basis, t, 0), 1e-12)

    def test_breakpoints(self, basis, interval):
        close(basis.breakpoints, self.breaks(interval), 1e-15)
        assert all(interval[0] < t < interval[1] for t in basis.breakpoints)
        assert isinstance(basis.breakpoints, tuple)
        assert basis.jumps == (basis.breakpoints if self.discontinuous else ())

    @pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0, 1)])
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_any_shape(self, plain, shape, side):
        t = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        z = plain(t, side)
        assert z.shape == (*shape, plain.size)
        flat = torch.stack([plain(x, side) for x in t.reshape(-1)]) if t.numel() else z
        assert torch.equal(z.reshape(-1, plain.size), flat.reshape(-1, plain.size))

    @pytest.mark.parametrize(
        "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
    )
    def test_keeps_the_dtype_and_loses_only_its_own_rounding(self, basis, interval, dtype):
        t = torch.from_numpy(self.inside(interval)).to(dtype)
        # Rounding may have carried a time to a jump, or within the ulps that count as on it.
        for jump in self.breaks(interval):
            t = t[(t.double() - jump).abs() > 0.3 * basis.length / basis.size]
        z = basis(t)
        assert z.dtype == dtype
        exact = basis(t.double())
        # The result is rounded once (eps); arithmetic is in float32 or better, where 30 ulps of
        # the largest value cover the recurrences.
        single = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        limit = (torch.finfo(dtype).eps + 30 * basis.size * single) * exact.abs().max().clamp(min=1)
        assert (z.double() - exact).abs().max() <= limit

    def test_numbers_and_integers_take_the_default_dtype(self, plain):
        assert plain(0.5).dtype == plain(1).dtype == torch.float32
        assert plain(torch.tensor([0, 1])).dtype == torch.float32
        assert torch.equal(plain(0.5), plain(torch.tensor(0.5)))
        assert torch.equal(plain(np.float64(0.5)), plain(Fraction(1, 2)))

    def test_meta_times(self, plain):
        z = plain(torch.empty(4, 2, device="meta", dtype=torch.bfloat16))
        assert z.is_meta
        assert z.shape == (4, 2, plain.size)
        assert z.dtype == torch.bfloat16

    def test_outside_the_interval(self, basis, interval):
        t0, t1 = interval
        away = np.array([t0 - 0.3 * (t1 - t0), t1 + 0.2 * (t1 - t0)])
        t = np.array(interval) if self.holds else away
        close(basis(torch.from_numpy(away)), self.expected(basis, t, 0), 1e-12)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_not_a_number(self, plain, side):
        t = torch.tensor([0.5, float("nan")])
        z = plain(t, side)
        assert z[0].isfinite().all()
        assert z[1].isnan().all()

    # ---- derivatives in t

    def test_gradcheck(self, basis, interval):
        t = torch.from_numpy(self.inside(interval)[:5]).requires_grad_()
        for side in ("left", "right"):
            torch.autograd.gradcheck(
                lambda t, side=side: basis(t, side), (t,), atol=1e-6, rtol=1e-5
            )

    def test_derivatives_match_the_formula(self, basis, interval):
        t = torch.from_numpy(self.inside(interval))
        first = derivative(basis)
        second = derivative(first)
        close(first(t), self.expected(basis, t.numpy(), 1), 1e-11)
        close(second(t), self.expected(basis, t.numpy(), 2), 1e-10)

    def test_second_derivative_at_zero_is_finite(self, plain):
        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        for column in plain(t):
            (slope,) = torch.autograd.grad(column, t, create_graph=True)
            if slope.requires_grad:
                assert torch.autograd.grad(slope, t, retain_graph=True)[0].isfinite()

    def test_vmap(self, basis, interval):
        t = torch.from_numpy(self.inside(interval))
        assert torch.equal(torch.func.vmap(basis)(t), basis(t))

    def test_compiles_as_one_graph(self):
        interval = (-2.0, 3.0)
        basis = self.make(interval)
        torch._dynamo.reset()
        compiled = torch.compile(lambda t: basis(t, "left"), backend="aot_eager", fullgraph=True)
        t = torch.from_numpy(self.inside(interval)).requires_grad_()
        z = compiled(t)
        assert torch.equal(z, basis(t, "left"))
        z.sum().backward()
        assert t.grad is not None

    # ---- linear algebra

    def test_unit_is_the_function_one(self, basis, interval):
        c = basis.unit()
        assert c.dtype == torch.float64
        t = torch.linspace(*interval, 101, dtype=torch.float64)
        close(basis(t) @ c, np.ones(101), 1e-13)

    def test_gram_matches_quadrature(self, basis, interval):
        edges = np.array([interval[0], *self.breaks(interval), interval[1]])
        edges = np.unique(np.concatenate([np.linspace(a, b, 21) for a, b in pairwise(edges)]))
        x, w = np.polynomial.legendre.leggauss(12)
        middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
        t, w = (middle[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()
        for m in self.orders:
            z = self.expected(basis, t, m)
            close(basis.gram(m), z.T @ (w[:, None] * z), 1e-10)

    @pytest.mark.parametrize("m", [0, 1, 2, 3, 4])
    def test_gram_is_symmetric_and_positive(self, basis, m):
        gram = basis.gram(m)
        assert gram.dtype == torch.float64
        assert gram.shape == (basis.size, basis.size)
        assert torch.equal(gram, gram.mT)
        eigenvalues = torch.linalg.eigvalsh(gram)
        assert eigenvalues.min() >= -1e-12 * eigenvalues.abs().max()

    @pytest.mark.parametrize("m", [1, 2, 3])
    def test_constants_are_smooth(self, basis, m):
        gram, c = basis.gram(m), basis.unit()
        assert c @ gram @ c <= 1e-12 * gram.abs().max().clamp(min=1)

    @pytest.mark.parametrize("m", [-1, 0.5, True, None, "1"])
    def test_gram_refuses_other_orders(self, plain, m):
        with pytest.raises(ValueError, match="m must be a whole number of at least 0"):
            plain.gram(m)

    # ---- stages

    def test_on_stages(self, basis, interval):
        z = basis.on(uniform_stages(interval, 7))
        assert z.dtype == torch.float64
        t0, t1 = interval
        close(z, self.expected(basis, t0 + (t1 - t0) * np.arange(7) / 7, 0), 1e-12)

    def test_on_no_stages(self, plain):
        assert plain.on(Stages(())).shape == (0, plain.size)

    def test_stage_values_do_not_depend_on_the_model_dtype(self, interval):
        stages = uniform_stages(interval, 7)
        expected = self.make(interval).on(stages)
        for cast in (torch.float16, torch.bfloat16, torch.float32):
            got = self.make(interval).to(cast).on(stages)
            assert got.dtype == torch.float64
            assert torch.equal(got, expected)

    def test_on_refuses_tensor_times(self, plain):
        with pytest.raises(ValueError, match=r"numbers as times.*basis\(t\)"):
            plain.on(Stages((Stage.alone(torch.tensor(0.5)),)))

    # ---- as a module

    def test_nothing_to_learn(self, plain):
        assert list(plain.parameters()) == []

    def test_copies(self, basis, interval):
        t = torch.from_numpy(self.inside(interval))
        other = self.make(interval)
        saved = io.BytesIO()
        torch.save(basis.state_dict(), saved)
        saved.seek(0)
        other.load_state_dict(torch.load(saved))
        for copied in (copy.deepcopy(basis), pickle.loads(pickle.dumps(basis)), other):
            assert copied.interval == basis.interval
            assert copied.breakpoints == basis.breakpoints
            assert torch.equal(copied(t), basis(t))

    def test_leaves_the_global_generator_alone(self, interval):
        before = torch.get_rng_state()
        self.make(interval)(torch.tensor(0.5))
        assert torch.equal(torch.get_rng_state(), before)

    def test_matrices_stay_on_the_cpu_under_another_default_device(self, interval):
        with torch.device("meta"):
            basis = self.make(interval)
            made = [basis.gram(m) for m in range(5)] + [basis.unit()]
            made.append(basis.on(uniform_stages(interval, 3)))
        assert all(matrix.device.type == "cpu" for matrix in made)

    def test_repr_names_size_and_interval(self, basis, interval):
        assert f"size={basis.size}" in repr(basis)
        assert f"interval={interval}" in repr(basis)

    # ---- bad input

    @pytest.mark.parametrize("t", [float("nan"), float("inf"), None, "0.5", [0.5], 1j])
    def test_refuses_times_that_are_no_numbers(self, plain, t):
        with pytest.raises(ValueError, match="t must be a finite number or a tensor"):
            plain(t)

    def test_refuses_complex_times(self, plain):
        with pytest.raises(ValueError, match=r"t must be real.*t\.real"):
            plain(torch.zeros(2, dtype=torch.complex64))

    @pytest.mark.parametrize("side", ["middle", None, 0])
    def test_refuses_other_sides(self, plain, side):
        with pytest.raises(ValueError, match='side must be "left" or "right"'):
            plain(torch.tensor(0.5), side)

    @pytest.mark.parametrize(
        "interval_",
        [(1.0, 1.0), (1.0, 0.0), (0.0, float("nan")), (float("-inf"), 0.0), (0.0,), 3, ("a", "b")],
        ids=str,
    )
    def test_refuses_other_intervals(self, interval_):
        with pytest.raises(ValueError, match="interval must"):
            self.make(interval_)

    def test_refuses_an_interval_of_infinite_length(self):
        with pytest.raises(ValueError, match="finite length"):
            self.make((-1.5e308, 1.5e308))


class OneInterval:
    """Mixed into a variant of a basis that has passed on all intervals."""

    @pytest.fixture
    def interval(self):
        return (-2.0, 3.0)


def derivative(function):
    """d/dt of a function of independent times, by forward mode."""
    return lambda t: torch.func.jvp(function, (t,), (torch.ones_like(t),))[1]
