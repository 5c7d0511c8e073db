"""What a run is made of is what its configuration says."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import nanode
from nanode.data import Batches, Crop, load
from nanode.training import AugmentConfig, OptimizerConfig, PenaltyConfig
from nanode.training.optimizers import make_optimizer
from nanode.training.setup import augmentations, later_images, penalty, prepare


@pytest.mark.parametrize("border", ["zero", "reflect"])
def test_crops_have_the_border_that_was_asked_for(border):
    assert augmentations(AugmentConfig(crop=2, border=border)) == [Crop(2, border)]


def test_what_is_held_out_is_the_same_for_all_seeds(config):
    """What a choice was made on is never trained on by another seed's run."""
    one, two = (prepare(replace(config, seed=seed)).data.validation for seed in (0, 1))
    assert torch.equal(one.images, two.images)


def test_betas_reach_the_optimizer():
    config = OptimizerConfig(name="adamw", betas=(0.5, 0.6), weight_decay=0.1)
    groups = make_optimizer(nn.Linear(2, 2), config).param_groups
    assert [group["betas"] for group in groups] == [(0.5, 0.6)] * 2


@pytest.mark.parametrize(("m", "integral"), [(1, 12.0), (2, 144.0)])
def test_the_penalty_is_on_the_derivative_that_was_asked_for(m, integral):
    """Of 6t² − 6t + 1, whose derivatives are 12t − 6 and 12."""
    field = nanode.TimeVarying(nn.Linear(1, 1, bias=False), nanode.Legendre(degree=2))
    with torch.no_grad():
        field.trajectory.coefficients.weight.copy_(torch.tensor([[0.0], [0.0], [1.0]]))
    found = penalty(PenaltyConfig(name="smoothness", derivative=m, weight=0.5), field)
    assert found.item() == pytest.approx(0.5 * integral)


def test_one_batch_is_enough_to_calibrate(config, perceptron):
    setup = prepare(replace(config, options={}, calibration=1))
    setup.calibrate()
    images, _ = setup.batches.batch(config.epochs, 0)
    flatten, linear, norm = setup.model[:3]
    seen = linear(flatten(images)).detach()
    # Statistics pass through a float32 buffer, scaled by the momentum.
    torch.testing.assert_close(norm.running_mean, seen.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm.running_var, seen.var(0), rtol=1e-5, atol=1e-5)


def test_more_images_than_an_epoch_has_are_of_the_epochs_after_it():
    batches = Batches(load("digits").train, 500)
    later = list(later_images(batches, epoch=3, count=5))
    places = [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0)]
    assert len(batches) == 2
    for images, place in zip(later, places, strict=True):
        assert torch.equal(images, batches.batch(*place)[0])
