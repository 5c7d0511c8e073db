import pytest
import torch
from torch import nn

from nanode.analysis.operator import (
    Operator,
    derivative,
    largest_eigenvalue,
    largest_singular_values,
    symmetric_part,
)
from tests.analysis.systems import largest, sample, torch64


def known(matrix):
    """A matrix as a map that counts its products."""
    counts = {"apply": 0, "transpose": 0}

    def apply(columns):
        counts["apply"] += columns.shape[1]
        return matrix @ columns

    def transpose(columns):
        counts["transpose"] += columns.shape[1]
        return matrix.T @ columns

    return Operator(matrix.shape[1], matrix, apply, transpose), counts


@pytest.mark.parametrize("shape", [(500, 500), (200, 800), (800, 200)])
def test_largest_singular_values_of_gaussian_matrices(shape):
    """The hardest case, a spectrum without gaps."""
    matrix = sample(*shape)
    operator, counts = known(matrix)
    found = largest_singular_values(operator, 4)
    exact = torch.linalg.svdvals(matrix)[:4]
    assert largest(found / exact - 1) < 0.02
    assert float((found / exact).max()) < 1 + 1e-12
    assert counts["apply"] <= 9 * 5
    assert counts["transpose"] <= 9 * 5


def test_deeper_is_closer():
    operator, _ = known(sample(400, 400))
    exact = float(torch.linalg.svdvals(sample(400, 400))[0])
    errors = [1 - float(largest_singular_values(operator, 1, depth=d)[0]) / exact for d in (1, 4)]
    assert errors[1] < errors[0] / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_maps(dtype):
    """Spans that close at once: the identity, zero, low rank, and more columns than dimensions."""
    slack = 100 * torch.finfo(dtype).eps
    eye = torch.eye(20, dtype=dtype)
    thin = sample(20, 2).to(dtype) @ sample(2, 20, seed=2).to(dtype)
    turn = torch.linalg.qr(sample(20, 20).to(dtype))[0]
    for matrix in (eye, 0 * eye, thin, turn, eye[:3, :3]):
        exact = torch.linalg.svdvals(matrix)[:3]
        found = largest_singular_values(known(matrix)[0], 3)
        assert largest(found - exact) <= slack * float(exact[0])


def test_the_largest_eigenvalue_is_not_the_largest_in_size():
    symmetric = torch.diag(torch.tensor([-9.0, -1.0, 0.5, 2.0], **torch64))
    assert largest_eigenvalue(known(symmetric)[0]) == pytest.approx(2.0)
    gaussian = sample(500, 500)
    found = largest_eigenvalue(symmetric_part(known(gaussian)[0]))
    exact = float(torch.linalg.eigvalsh((gaussian + gaussian.T) / 2)[-1])
    assert (1 - 0.02) * exact < found < (1 + 1e-12) * exact


def test_products_are_those_of_the_jacobian_and_transposed_to_each_other():
    def f(x):
        return torch.stack([x[0] * x[1], x[1].sin(), x[0] ** 3])

    operator = derivative(f, torch.tensor([2.0, 0.5], **torch64))
    expected = torch.tensor([[0.5, 2.0], [0.0, 0.5], [12.0, 0.0]], **torch64)
    expected[1, 1] = torch.cos(torch.tensor(0.5, **torch64))
    assert largest(operator.dense() - expected) < 1e-15
    u, v = sample(3, 4), sample(2, 4, seed=5)
    assert largest(operator.transpose(u) - expected.T @ u) < 1e-14
    assert largest(operator.apply(v) - expected @ v) < 1e-14
    constant = derivative(lambda x: torch.ones(3, **torch64), torch.ones(2, **torch64))
    assert torch.equal(constant.transpose(u), torch.zeros(2, 4, **torch64))
    assert torch.equal(constant.apply(v), torch.zeros(3, 4, **torch64))


def test_attention_is_differentiated_and_its_settings_are_left_alone():
    """Its fast path and fused kernels have no forward mode."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).double().eval()
    layer.requires_grad_(False)

    def f(x):
        return layer(x.view(1, 3, 4)).view(-1)

    assert torch.backends.mha.get_fastpath_enabled()
    found = derivative(f, sample(12)).dense()
    rows = torch.autograd.functional.jacobian(f, sample(12))
    assert largest(found - rows) < 1e-12
    assert torch.backends.mha.get_fastpath_enabled()


def test_wrong_counts_are_refused():
    operator, _ = known(sample(3, 3))
    with pytest.raises(ValueError, match="count=4 is more than the 3"):
        largest_singular_values(operator, 4)
    with pytest.raises(ValueError, match="depth must be a whole number of at least 1"):
        largest_singular_values(operator, 1, depth=0)
