"""What a step costs, against the specification and numbers counted by hand."""

from dataclasses import replace

import pytest
import torch

from nanode.models.video import create
from nanode.training.video.costs import kernel_bytes, measure_video_costs
from nanode.training.video.setup import prepare


@pytest.mark.parametrize(
    ("name", "width", "gigabytes"),
    [
        ("svg", 64, "7.36e-02"),
        ("svg-auto", 64, "7.36e-02"),
        ("svg-nanode", 64, "2.90e-01"),
        ("svg", 16, "4.60e-03"),
        ("svg-nanode", 16, "1.81e-02"),
    ],
)
def test_kernels_have_the_bytes_of_the_specification(name, width, gigabytes):
    assert f"{kernel_bytes(create(name, width=width)) / 1e9:.2e}" == gigabytes


def costs(config, model="svg-nanode", **options):
    options = {"width": 2, "g_dim": 8, "z_dim": 3, "rnn_size": 8} | options
    return measure_video_costs(prepare(replace(config, model=model, options=options)))


def test_recomputing_holds_less(config):
    plain = costs(config, "svg")
    kept, recomputed = costs(config), costs(config, gradient="checkpointed")
    assert plain.flow_activation_bytes == plain.flow_table_bytes == 0
    # Three evaluations where there was one.
    assert kept.saved_bytes > 1.4 * plain.saved_bytes
    assert recomputed.saved_bytes < 0.8 * kept.saved_bytes
    assert recomputed.flow_activation_bytes < 0.5 * kept.flow_activation_bytes
    assert plain.peak_bytes is None  # without a GPU


def test_frames_one_by_one_are_all_counted(config):
    batch, frame = (costs(config, encode=encode) for encode in ("batch", "frame"))
    assert frame.flow_activation_bytes == pytest.approx(batch.flow_activation_bytes, rel=0.01)


def test_activations_of_a_layer_counted_by_hand(config):
    """Two more layers at full resolution in encoder and decoder hold two tensors each."""
    few, many = (costs(config, "svg", convs_per_stage=[n, 2, 2, 2]).saved_bytes for n in (3, 4))
    encoded, decoded = 4 * 6, 4 * 5  # frames of 4 clips
    pixels, width = 16 * 16, 2
    # What the convolution gives and what the activation leaves; norms keep mean and deviation.
    tensors = 2 * (encoded + decoded) * pixels * width * 4
    assert many - few - tensors == pytest.approx(0, abs=200)


def test_measuring_changes_nothing(config):
    setup = prepare(config)
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    state = torch.get_rng_state()
    measure_video_costs(setup)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in setup.model.state_dict().items())
    assert all(p.grad is None for p in setup.model.parameters())
