import pytest
import torch


@pytest.fixture(autouse=True)
def double_precision_and_a_fixed_seed():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
