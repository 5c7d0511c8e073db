import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Thousands of small tensors: threads would spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
