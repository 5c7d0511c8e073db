import pytest
import torch

from nanode.training.video.order import Order, latent_noise


def test_each_pass_shows_every_clip_once_in_an_order_of_its_own():
    order = Order(count=12, batch_size=4, seed=0)
    passes = [torch.cat([order.indices(3 * n + k) for k in range(3)]) for n in range(2)]
    for shown in passes:
        assert sorted(shown.tolist()) == list(range(12))
    assert not torch.equal(*passes)


def test_endless_clips_never_come_again():
    order = Order(count=12, batch_size=4, seed=0, endless=True)
    shown = torch.cat([order.indices(step) for step in range(9)])
    assert sorted(shown.tolist()) == list(range(36))


def test_a_step_is_the_same_whatever_came_before():
    order, again = (Order(count=10, batch_size=3, seed=7) for _ in range(2))
    steps = [order.indices(step) for step in range(9)]
    assert torch.equal(again.indices(7), steps[7])
    assert torch.equal(again.indices(2), steps[2])
    assert not torch.equal(Order(10, 3, seed=8).indices(7), steps[7])


def test_too_few_clips():
    with pytest.raises(ValueError, match="3 clips, fewer than a batch of 4"):
        Order(count=3, batch_size=4, seed=0)


def test_noise_is_normal_and_belongs_to_its_clip():
    noise = latent_noise(3, torch.tensor([5, 2, 9]), samples=20, times=30, latents=10)
    assert noise.shape == (3, 20, 30, 10)
    # 18,000 numbers: standard errors are 0.0075 and 0.0053.
    assert abs(noise.mean().item()) < 0.03
    assert abs(noise.std().item() - 1) < 0.03
    assert not torch.equal(noise[0], noise[1])
    assert torch.equal(noise[1:2, :7], latent_noise(3, torch.tensor([2]), 7, 30, 10))
    assert not torch.equal(noise, latent_noise(4, torch.tensor([5, 2, 9]), 20, 30, 10))
