import pytest
import torch

from tests.trajectories.orthogonal_samples import FORMS


@pytest.fixture(autouse=True)
def double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(params=FORMS, ids=lambda form: type(form).__name__)
def form(request):
    return request.param
