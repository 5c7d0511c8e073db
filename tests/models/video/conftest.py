import pytest
import torch

from nanode.models.video import create


@pytest.fixture
def tiny():
    """Makes a small model in double precision, away from its start and with statistics of its own.

    At the start the norms' stored statistics are 0 and 1 and the latents hardly matter.
    """

    def make(name="svg-nanode", **options):
        torch.manual_seed(1)
        shape = {"size": 16, "width": 2, "g_dim": 6, "z_dim": 3, "rnn_size": 5}
        model = create(name, **shape | options).double()
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.data += torch.rand_like(buffer)
        return model.eval()

    return make


@pytest.fixture
def clips():
    """Random frames and noise of N clips of T frames."""

    def make(n, t, z=3, channels=1, size=16):
        frames = torch.rand(n, t, channels, size, size, dtype=torch.float64)
        return frames, torch.randn(n, t - 1, z, dtype=torch.float64)

    return make
