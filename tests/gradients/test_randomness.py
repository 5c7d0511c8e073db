"""Random numbers drawn twice, on devices with a generator of their own and on those without."""

from types import SimpleNamespace

import pytest
import torch

from nanode.gradients.randomness import as_drawn, equal_states, random_state, undrawn

CPU, APPLE, META = map(torch.device, ("cpu", "mps", "meta"))


@pytest.fixture
def apple(monkeypatch):
    """The generator of a device that isn't CUDA, in torch's place for it."""
    generator = torch.Generator().manual_seed(7)

    def set_rng_state(state, device="mps"):
        assert device == APPLE
        generator.set_state(state)

    def get_rng_state(device="mps"):
        assert device == APPLE
        return generator.get_state()

    own = SimpleNamespace(get_rng_state=get_rng_state, set_rng_state=set_rng_state)
    monkeypatch.setattr(torch, "mps", own)
    return generator


def draw(apple):
    return torch.rand(3).tolist(), torch.rand(3, generator=apple).tolist()


def test_states_are_the_hosts_and_the_devices_own(apple):
    host, own = random_state(APPLE)
    assert torch.equal(host, torch.get_rng_state())
    assert torch.equal(own, apple.get_state())
    for device in (CPU, META):
        assert equal_states(random_state(device), [host])


def test_numbers_of_both_are_drawn_again(apple):
    before = random_state(APPLE)
    expected = draw(apple)
    draw(apple)
    now = random_state(APPLE)
    with as_drawn(before, APPLE) as drew:
        assert not drew()
        assert draw(apple) == expected
        assert drew()
    assert equal_states(random_state(APPLE), now)


def test_numbers_of_the_device_alone_count_as_drawn(apple):
    with as_drawn(random_state(APPLE), APPLE) as drew:
        torch.rand(1, generator=apple)
        assert drew()


@pytest.mark.parametrize("device", [CPU, META], ids=str)
def test_devices_without_one_leave_it_alone(device, apple):
    before, own = random_state(device), apple.get_state()
    expected = torch.rand(3)
    with as_drawn(before, device) as drew:
        torch.rand(1, generator=apple)
        assert not drew()
        assert torch.equal(torch.rand(3), expected)
        assert drew()
    assert not torch.equal(apple.get_state(), own)


def test_without_states_nothing_is_drawn_again(apple):
    before = random_state(APPLE)
    with as_drawn(None, APPLE) as drew:
        draw(apple)
        assert not drew()
    assert not equal_states(random_state(APPLE), before)


@pytest.mark.parametrize("devices", [[APPLE], [CPU, APPLE, META, APPLE]], ids=str)
def test_undrawn(devices, apple):
    before = random_state(APPLE)
    with undrawn(devices):
        draw(apple)
    assert equal_states(random_state(APPLE), before)


def test_undrawn_on_the_host_alone(apple):
    host, own = random_state(APPLE)
    with undrawn([META]):
        draw(apple)
    assert torch.equal(torch.get_rng_state(), host)
    assert not torch.equal(apple.get_state(), own)


@pytest.mark.parametrize("again", [True, False], ids=["as_drawn", "undrawn"])
def test_errors_restore_both_too(again, apple):
    states = random_state(APPLE)
    draw(apple)
    now = random_state(APPLE)

    def fail():
        with as_drawn(states, APPLE) if again else undrawn([APPLE]):
            draw(apple)
            raise RuntimeError("in the midst")

    with pytest.raises(RuntimeError, match="in the midst"):
        fail()
    assert equal_states(random_state(APPLE), now)
