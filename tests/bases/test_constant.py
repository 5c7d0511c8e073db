import numpy as np
import torch

from nanode.bases import Constant
from tests.contracts.basis_contract import BasisContract


class TestConstant(BasisContract):
    def make(self, interval):
        return Constant(interval=interval)

    def expected(self, basis, t, m):
        return np.full((len(t), 1), 1.0 if m == 0 else 0.0)


def test_gram_is_the_length():
    assert torch.equal(Constant((-2.0, 3.0)).gram(), torch.tensor([[5.0]], dtype=torch.float64))
    assert torch.equal(Constant().gram(1), torch.zeros(1, 1, dtype=torch.float64))


def test_the_gradient_in_t_exists_and_is_zero():
    t = torch.tensor([0.1, 0.2], requires_grad=True)
    Constant()(t).sum().backward()
    assert torch.equal(t.grad, torch.zeros(2))
