import numpy as np
import pytest
import torch

from nanode.bases import Bucketed, Constant
from tests.contracts.basis_contract import BasisContract


class TestConstant(BasisContract):
    def make(self, interval):
        return Constant(interval=interval)

    def expected(self, basis, t, m):
        return np.full((len(t), 1), 1.0 if m == 0 else 0.0)


def test_gram_is_the_length():
    assert torch.equal(Constant((-2.0, 3.0)).gram(), torch.tensor([[5.0]], dtype=torch.float64))
    assert torch.equal(Constant().gram(1), torch.zeros(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("basis", [Constant(), Bucketed(3)], ids=str)
def test_the_compiler_does_not_fold_nan_away(basis):
    t = torch.tensor([0.5, float("nan")])
    torch._dynamo.reset()
    try:
        z = torch.compile(basis, fullgraph=True)(t)
    except torch._inductor.exc.InductorError as error:
        pytest.skip(f"no working compiler here: {error}")
    assert z[0].isfinite().all()
    assert z[1].isnan().all()


def test_the_gradient_in_t_exists_and_is_zero():
    t = torch.tensor([0.1, 0.2], requires_grad=True)
    Constant()(t).sum().backward()
    assert torch.equal(t.grad, torch.zeros(2))
