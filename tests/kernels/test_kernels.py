"""Every kernel against its plain reference in float64, on odd shapes, with poisoned outputs."""

import operator

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
from nanode.kernels.moments import merge_moments, moments_reference
from nanode.kernels.project import project_reference
from nanode.kernels.project_backward import (
    project_backward_reference,
    project_backward_sums_reference,
)

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
#: Rows are batch × height × width, mostly no multiple of any tile; channels (C, M).
SHAPES = [(1, 64, 16), (3 * 7 * 7, 48, 16), (130 * 7 * 7, 64, 32), (33 * 31, 256, 64)]
bf16 = torch.bfloat16
#: The precision of the state and of the matrices. In the first nothing is cut to bf16 inside.
PRECISIONS = [(torch.float32, torch.float32), (torch.float32, bf16), (bf16, bf16)]
#: Errors as parts of a result's size: sums of fp32, and values cut to bf16 on their way.
TIGHT, HALF = 2e-5, 2**-6

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    if request.param == "cpu" and not serves(torch.zeros(1, 16)):
        pytest.skip("Triton is not installed or not interpreted here: only references would run")
    return request.param


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
        self.x, self.h = off_the_kink(self.x, self.norm), off_the_kink(self.h, self.inner)

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


def off_the_kink(x, norm):
    """x with nothing so near ReLU's kink that rounding would choose its derivative."""
    near = (wide(x) - norm.mean) * (norm.rstd * norm.weight) + norm.bias
    return torch.where(near.abs() < 1e-4, x + 0.25, x)


def leaves(result):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if leaf is not None]


def off_by(found, exact):
    """Every element's error as a part of its own size and of the whole result's.

    An error within a sum over channels or rows belongs to the terms, not to what is left of them,
    so that the whole result's size counts where an element is small. The cotangents of a batch of
    one cancel to nothing: hence the floor, a tenth of the terms' size.
    """
    size = exact.square().mean().sqrt().clamp(min=0.1)
    return (found.double() - exact).abs() / (exact.abs() + size)


def check(kernel, reference, args, *tolerances, **options):
    """Every element close to the float64 reference, and the same bits in a second run.

    One tolerance for each result, or one for all. Operands are given in the precision of the
    kernel, so only its own roundings count: fp32's, or those of an activation or a result cut to
    bf16, 2^-9 where a GPU rounds and 2^-8 on average where the interpreter cuts, a few of which
    meet in one element.
    """
    first = leaves(kernel(*args, **options))
    if args[0].is_cuda:  # the interpreter runs programs one after the other
        for a, b in zip(first, leaves(kernel(*args, **options)), strict=True):
            assert torch.equal(a, b)
    expected = leaves(reference(*wide(args), **wide(options)))
    tolerances = tolerances * len(expected) if len(tolerances) == 1 else tolerances
    for n, (found, exact, tolerance) in enumerate(zip(first, expected, tolerances, strict=True)):
        assert found.shape == exact.shape
        error = off_by(found, exact)
        worst = error.max().item()
        if not worst <= tolerance:  # NaN is no number either
            place = [i.item() for i in torch.unravel_index(error.argmax(), error.shape)]
            raise AssertionError(f"result {n} is off by {worst:.1e} at {place}")


@pytest.mark.parametrize(("dtype", "matrix"), PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
class TestKernels:
    @pytest.fixture
    def p(self, device, shape, dtype, matrix):
        if matrix is torch.float32 and device == "cuda" and shape[1] > 64:
            pytest.skip("wide matrices are bf16 on a GPU")
        rows, *widths = shape
        rows = rows if device == "cuda" else min(rows, 33 * 31)  # the interpreter takes its time
        return Problem(device, rows, *widths, dtype=dtype, matrix=matrix)

    @pytest.fixture
    def tolerance(self, matrix):
        """For whatever goes through a product, or comes out in the matrices' precision."""
        return HALF if matrix is bf16 else TIGHT

    def test_moments(self, p):
        check(moments, moments_reference, (p.x, 1e-2), TIGHT)

    def test_project(self, p, tolerance):
        check(project, project_reference, (p.x, p.norm, p.down), tolerance, eps=1e-2)
        # The moments belong to what is stored, so they share its rounding.
        h, found = project(p.x, p.norm, p.down, eps=1e-2)
        check(lambda h: found, lambda h: moments_reference(h, 1e-2), (h,), TIGHT)

    def test_activate(self, p, matrix, tolerance):
        reference = lambda x, norm: activate_reference(x, norm, dtype=torch.float64)  # noqa: E731
        check(lambda *a: activate(*a, dtype=matrix), reference, (p.x, p.norm), tolerance)

    def test_activate_backward(self, p, dtype):
        g = p.g.to(dtype)
        check(activate_sums, activate_sums_reference, (g, p.x, p.norm), TIGHT)
        sums = activate_sums(g, p.x, p.norm)
        tolerance = HALF if dtype is bf16 else TIGHT
        check(activate_backward, activate_backward_reference, (g, p.x, p.norm, sums), tolerance)

    @pytest.mark.parametrize("many", [1, 2])
    def test_expand(self, p, tolerance, many):
        states = [(0.7, p.g), (-0.4, p.g2)][:many]
        args = (p.h, p.inner, p.up, 0.3, states)
        check(expand, expand_reference, args, tolerance, eps=1e-2)
        # The next product is made of what has just been rounded, and rounded again.
        both = (tolerance, 2 * tolerance)
        check(expand, expand_reference, args, *both, following=(p.norm, p.down))
        new, found, _ = expand(*args, eps=1e-2)
        check(lambda x: found, lambda x: moments_reference(x, 1e-2), (new,), TIGHT)

    def test_expand_backward(self, p, dtype, tolerance):
        args = (p.g.to(dtype), 0.3, p.h, p.inner, p.up)
        check(expand_backward, expand_backward_reference, args, tolerance)

    def test_project_backward(self, p, tolerance):
        args = (p.gh, p.x, p.norm, p.down)
        check(project_backward_sums, project_backward_sums_reference, args, tolerance)
        sums = project_backward_sums(*args)[0]
        for many in range(3):
            cotangents = [(0.7, p.g), (-0.4, p.g2)][:many]
            check(project_backward, project_backward_reference, (*args, sums, cotangents), TIGHT)

    def test_memory_for_results_is_filled(self, p, dtype):
        """All of it, by what the kernel returns without."""
        g, inward = p.g.to(dtype), (p.gh, p.x, p.norm, p.down)
        into_tensors = [
            (activate_sums, (g, p.x, p.norm)),
            (activate_backward, (g, p.x, p.norm, activate_sums(g, p.x, p.norm))),
            (project_backward, (*inward, project_backward_sums(*inward)[0], [(0.7, p.g)])),
        ]
        for kernel, args in into_tensors:
            expected = kernel(*args)
            given = torch.full_like(expected, torch.nan)
            assert kernel(*args, out=given) is given
            assert torch.equal(given, expected)
        args = (p.h, p.inner, p.up, 0.3, [(0.7, p.g), (-0.4, p.g2)])
        expected = expand(*args)[0]
        given = torch.full_like(expected, torch.nan)
        assert expand(*args, out=given)[0] is given
        assert torch.equal(given, expected)
        into_pairs = [
            (expand_backward, (g, 0.3, p.h, p.inner, p.up)),
            (project_backward_sums, inward),
        ]
        for kernel, args in into_pairs:
            *_, sums, matrix = kernel(*args)
            given = torch.full_like(sums, torch.nan), torch.full_like(matrix, torch.nan)
            assert all(map(operator.is_, kernel(*args, out=given)[-2:], given))
            assert all(map(torch.equal, given, (sums, matrix)))


def test_moments_of_a_large_mean(device):
    """A sum of squares in fp32 would lose all of the variance here; blocks merged do not."""
    x = (torch.randn(5000, 32, generator=torch.Generator().manual_seed(0)) + 3000.0).to(device)
    mean, rstd = moments(x)
    exact_mean, exact_rstd = moments_reference(x.double())
    assert (mean - exact_mean).abs().max() < 1e-3
    assert (rstd / exact_rstd - 1).abs().max() < 1e-3


def test_moments_of_more_blocks_than_are_merged_at_once(device):
    """Of one row each; the first 1024 have another mean than the rest."""
    x = torch.randn(1500, 8, generator=torch.Generator().manual_seed(0))
    x[1024:] += 3
    if not serves(x.to(device)):
        pytest.skip("without Triton nothing is merged")
    parts = torch.stack((x, torch.zeros_like(x)), 1).to(device)
    mean, rstd = merge_moments(parts, 1500, 1, 1e-5)
    torch.testing.assert_close(mean.cpu(), x.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rstd.cpu(), x.var(0, correction=0).rsqrt(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("by", ["kernel", "reference"])
def test_nothing_flows_back_through_a_norm_of_zeros(by, device):
    """ReLU's derivative at 0 is 0, as torch's is."""
    p = Problem(device, 147, 48, 16)
    for norm in (p.norm, p.inner):
        norm.weight[::2] = norm.bias[::2] = 0
    kernels = [activate_sums, project_backward_sums, expand_backward]
    references = [
        activate_sums_reference,
        project_backward_sums_reference,
        expand_backward_reference,
    ]
    activated, projected, expanded = kernels if by == "kernel" else references
    found = [
        activated(p.g, p.x, p.norm),
        projected(p.gh, p.x, p.norm, p.down)[0],
        expanded(p.g, 0.3, p.h, p.inner, p.up)[1],
    ]
    for sums in found:
        assert not sums[:, ::2].any()
        assert sums[:, 1::2].all()


def test_references_multiply_what_kernels_multiply():
    """Activations in the precision of the matrix."""
    p = Problem("cpu", 147, 48, 16)
    active = wide(activate_reference(p.x, p.norm, dtype=bf16))
    _, gw = project_backward_sums_reference(p.gh, p.x, p.norm, p.down)
    assert off_by(gw, wide(p.gh).mT @ active).max() < TIGHT
    inner = wide(activate_reference(p.h, p.inner, dtype=bf16))
    _, _, gw = expand_backward_reference(p.g, 0.3, p.h, p.inner, p.up)
    assert off_by(gw, wide((0.3 * p.g).to(bf16)).mT @ inner).max() < TIGHT


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


#: Corners, both sides of the tiles' edges (64 or 128 rows, 16 or 32 channels), and the middle.
PLACES = [(0, 0), (63, 31), (64, 32), (70, 20), (127, 15), (128, 16), (146, 0), (146, 47)]


@pytest.mark.parametrize("matrix", [torch.float32, bf16])
def test_the_check_sees_a_single_wrong_element(matrix, device):
    """Off by a tenth of the results' size, anywhere; or a row left out of a sum over them all."""
    p = Problem(device, 147, 48, 16, matrix=matrix)
    tolerance = HALF if matrix is bf16 else TIGHT
    args = (p.h, p.inner, p.up, 0.3, [(0.7, p.g)])
    good = expand(*args)[0]
    check(lambda *a: (good, None, None), expand_reference, args, tolerance)
    for place in PLACES:
        for wrong in (good[place] + 0.1 * (1 + good[place].abs()), float("nan")):
            bad = good.clone()
            bad[place] = wrong
            with pytest.raises(AssertionError, match=f"at {list(place)}".replace("[", r"\[")):
                check(lambda *a, bad=bad: (bad, None, None), expand_reference, args, tolerance)
    short = (p.gh[:-1], p.x[:-1], p.norm, p.down)
    args = (p.gh, p.x, p.norm, p.down)
    with pytest.raises(AssertionError, match="off by"):
        check(lambda *a: project_backward_sums(*short), project_backward_sums_reference, args, HALF)
