"""Every kernel against its plain reference in float64, on odd shapes, with poisoned outputs."""

import pytest
import torch

from nanode.kernels import (
    Norm,
    activate,
    activate_backward,
    activate_sums,
    expand,
    expand_backward,
    moments,
    project,
    project_backward,
    project_backward_sums,
)
from nanode.kernels.activate import (
    activate_backward_reference,
    activate_reference,
    activate_sums_reference,
)
from nanode.kernels.expand import expand_reference
from nanode.kernels.expand_backward import expand_backward_reference
from nanode.kernels.language import serves
from nanode.kernels.moments import moments_reference
from nanode.kernels.project import project_reference
from nanode.kernels.project_backward import (
    project_backward_reference,
    project_backward_sums_reference,
)

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)
#: Rows are batch × height × width, mostly no multiple of any tile; channels (C, M).
SHAPES = [(1, 64, 16), (3 * 7 * 7, 48, 16), (130 * 7 * 7, 64, 32), (33 * 31, 256, 64)]
bf16 = torch.bfloat16


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    if request.param == "cpu" and not serves(torch.zeros(1, 16)):
        pytest.skip("Triton is not installed or not interpreted here: only references would run")
    return request.param


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fresh memory is NaN, so that an element left unwritten shows."""
    empty, empty_like, new_empty = torch.empty, torch.empty_like, torch.Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    monkeypatch.setattr(
        torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(float("nan"))
    )
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(float("nan"))
    )


class Problem:
    """Random inputs of one shape, and the same in float64."""

    def __init__(self, device, rows, channels, width, dtype=torch.float32, matrix=bf16):
        self.generator = torch.Generator().manual_seed(rows + channels)
        self.device = device
        self.x, self.y = (self.random(rows, channels).to(dtype) for _ in range(2))
        self.g, self.g2 = self.random(rows, channels), self.random(rows, channels)
        self.h, self.gh = (self.random(rows, width).to(matrix) for _ in range(2))
        self.down = (self.random(width, channels) / channels**0.5).to(matrix)
        self.up = (self.random(channels, width) / width**0.5).to(matrix)
        self.norm, self.inner = self.make_norm(self.x), self.make_norm(self.h)

    def random(self, *shape):
        return torch.randn(*shape, generator=self.generator).to(self.device)

    def make_norm(self, x):
        c = x.shape[1]
        mean, rstd = moments_reference(x)
        # One row has no variance: its rstd would be the largest number around.
        rstd = rstd.clamp(max=10)
        return Norm(1 + 0.3 * self.random(c), 0.3 * self.random(c), mean, rstd)


def wide(value):
    """The same values in float64, wherever they are."""
    if isinstance(value, torch.Tensor):
        return value.double()
    if isinstance(value, Norm):
        return Norm(*map(wide, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(wide, value))
    return value


def check(kernel, reference, args, tolerance, **options):
    """Close to the float64 reference, complete, and the same bits in a second run.

    Tolerances: operands are given in the precision of the kernel, so only its own roundings
    count: 1e-5 where all is fp32, 1e-2 where an activation or a result is cut to bf16 inside (the
    interpreter cuts where a GPU rounds, which is twice as far).
    """
    results = [kernel(*args, **options) for _ in range(2)]
    expected = reference(*wide(args), **wide(options))
    leaves = [
        [leaf for leaf in torch.utils._pytree.tree_leaves(result) if leaf is not None]
        for result in (*results, expected)
    ]
    for first, second, exact in zip(*leaves, strict=True):
        assert torch.equal(first, second)
        # The cotangents of a batch of one cancel to nothing: then only absolute errors mean much.
        size = max(exact.norm().item(), 0.1 * exact.numel() ** 0.5)
        error = (first.double() - exact).norm() / size
        assert error < tolerance, (error, first.shape)


@pytest.mark.parametrize("dtype", [torch.float32, bf16])
@pytest.mark.parametrize("shape", SHAPES)
class TestKernels:
    def problem(self, device, shape, dtype):
        return Problem(device, *shape, dtype=dtype)

    def test_moments(self, device, shape, dtype):
        p = self.problem(device, shape, dtype)
        check(moments, moments_reference, (p.x, 1e-2), 1e-5)

    def test_project(self, device, shape, dtype):
        p = self.problem(device, shape, dtype)
        check(project, project_reference, (p.x, p.norm, p.down), 1e-2, eps=1e-2)

    def test_activate(self, device, shape, dtype):
        p = self.problem(device, shape, dtype)
        reference = lambda x, norm: activate_reference(x, norm, dtype=torch.float64)  # noqa: E731
        check(lambda *a: activate(*a, dtype=bf16), reference, (p.x, p.norm), 1e-2)

    def test_activate_backward(self, device, shape, dtype):
        p = self.problem(device, shape, dtype)
        g = p.g.to(dtype)
        check(activate_sums, activate_sums_reference, (g, p.x, p.norm), 1e-5)
        sums = activate_sums(g, p.x, p.norm)
        check(activate_backward, activate_backward_reference, (g, p.x, p.norm, sums), 1e-2)

    @pytest.mark.parametrize("many", [1, 2])
    def test_expand(self, device, shape, dtype, many):
        p = self.problem(device, shape, dtype)
        states = [(0.7, p.g), (-0.4, p.g2)][:many]
        args = (p.h, p.inner, p.up, 0.3, states)
        check(expand, expand_reference, args, 1e-2)
        check(expand, expand_reference, args, 1e-2, eps=1e-2)
        check(expand, expand_reference, args, 1e-2, following=(p.norm, p.down))

    def test_expand_backward(self, device, shape, dtype):
        p = self.problem(device, shape, dtype)
        g = p.g.to(dtype)
        args = (g, 0.3, p.h, p.inner, p.up)
        check(expand_backward, expand_backward_reference, args, 1e-2)

    @pytest.mark.parametrize("many", [0, 1, 2])
    def test_project_backward(self, device, shape, dtype, many):
        p = self.problem(device, shape, dtype)
        args = (p.gh, p.x, p.norm, p.down)
        check(project_backward_sums, project_backward_sums_reference, args, 1e-2)
        sums = project_backward_sums(*args)[0]
        cotangents = [(0.7, p.g), (-0.4, p.g2)][:many]
        check(project_backward, project_backward_reference, (*args, sums, cotangents), 1e-5)


def test_moments_of_a_large_mean(device):
    """A sum of squares in fp32 would lose all of the variance here; blocks merged do not."""
    x = (torch.randn(5000, 32, generator=torch.Generator().manual_seed(0)) + 3000.0).to(device)
    mean, rstd = moments(x)
    exact_mean, exact_rstd = moments_reference(x.double())
    assert (mean - exact_mean).abs().max() < 1e-3
    assert (rstd / exact_rstd - 1).abs().max() < 1e-3


def test_the_state_may_be_overwritten(device):
    p = Problem(device, 147, 64, 16)
    args = (p.h, p.inner, p.up, 0.3)
    apart = expand(*args, [(0.7, p.g), (-0.4, p.g2)])[0]
    first = p.g.clone()
    assert expand(*args, [(0.7, first), (-0.4, p.g2)], out=first)[0] is first
    assert torch.equal(first, apart)
    second = p.g2.clone()
    expand(*args, [(0.7, p.g), (-0.4, second)], out=second)
    assert torch.equal(second, apart)
    # The moments' shift is read from a row that is then written over.
    big = Problem(device, 33 * 31, 64, 16)
    args = (big.h, big.inner, big.up, 0.3)
    apart = expand(*args, [(1.0, big.g)], eps=1e-5)
    for _ in range(3):
        first = big.g.clone()
        again = expand(*args, [(1.0, first)], out=first, eps=1e-5)
        assert all(torch.equal(a, b) for a, b in zip(again[1], apart[1], strict=True))


@pytest.mark.parametrize("many", [0, 3])
def test_the_number_of_states_is_checked(many):
    p = Problem("cpu", 2, 16, 16)
    with pytest.raises(ValueError, match="1 or 2 states"):
        expand(p.h, p.inner, p.up, 0.3, [(1.0, p.g)] * many)


def test_the_number_of_cotangents_is_checked():
    p = Problem("cpu", 2, 16, 16)
    with pytest.raises(ValueError, match="at most 2 cotangents"):
        project_backward(p.gh, p.x, p.norm, p.down, torch.zeros(2, 16), [(1.0, p.g)] * 3)


def test_references_run_where_triton_does_not():
    """float64 is never a kernel's: the fallback answers, with the same signature."""
    p = Problem("cpu", 5, 32, 16)
    x, norm, down = wide((p.x, p.norm, p.down))
    assert project(x, norm, down)[0].dtype == torch.float64
