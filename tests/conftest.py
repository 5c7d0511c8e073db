import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_and_a_fixed_seed():
    """Tensors here are too small to share: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
