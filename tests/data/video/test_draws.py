"""Random numbers by counting: right, uniform, and independent as far as tests can see."""

import math

import pytest
import torch
from scipy import stats

from nanode.data.video.draws import below, draw, fraction, stream
from tests.data.video import reference

# Fixed seeds: a p-value below this is a fault that was made, not bad luck.
UNLIKELY = 1e-3


def test_published_values():
    """The outputs of the public-domain SplitMix64 for the seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    drawn = draw(torch.tensor(1234567), torch.arange(5))
    assert [value % 2**64 for value in drawn.tolist()] == published


def test_arithmetic_wraps_as_it_should():
    starts = [0, 1, -1, 2**63 - 1, -(2**63), stream(3, "x")]
    numbers = [0, 1, 12345, 2**40]
    drawn = draw(torch.tensor(starts)[:, None], torch.tensor(numbers))
    expected = [
        [reference.splitmix(start % 2**64, number) for number in numbers] for start in starts
    ]
    assert (drawn.numpy().view("uint64") == expected).all()


def sample(kind):
    """A hundred thousand draws along one direction in which streams are counted."""
    many = torch.arange(100_000)
    if kind == "draws of a stream":
        return draw(stream(0, "train"), many)
    if kind == "first draws of sequences":
        return draw(draw(stream(0, "train"), many), torch.zeros((), dtype=torch.int64))
    return draw(torch.tensor([stream(seed, "train") for seed in range(100_000)]), many[:1])


KINDS = ["draws of a stream", "first draws of sequences", "first sequences of seeds"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [4, 9, 32, 1437])
def test_numbers_are_uniform(kind, count):
    drawn = below(sample(kind), count)
    assert int(drawn.min()) == 0
    assert int(drawn.max()) == count - 1
    assert stats.chisquare(torch.bincount(drawn)).pvalue > UNLIKELY


@pytest.mark.parametrize("kind", KINDS)
def test_fractions_are_uniform_and_uncorrelated(kind):
    drawn = fraction(sample(kind), 48).double() / 2**48
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > UNLIKELY
    # The correlation of neighbours has standard deviation 1/√n.
    correlation = torch.corrcoef(torch.stack([drawn[1:], drawn[:-1]]))[0, 1]
    assert abs(float(correlation)) < 4 / math.sqrt(len(drawn))


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_one_half_of_the_time(kind):
    drawn = sample(kind)
    ones = torch.stack([(drawn >> place) & 1 for place in range(64)]).double().mean(1)
    assert float((ones - 0.5).abs().max()) < 4.5 * 0.5 / math.sqrt(len(drawn))


def test_pairs_of_draws_fill_the_square():
    """dx and dy of many sequences, 81 pairs."""
    starts = draw(stream(1, "test"), torch.arange(100_000))
    dx, dy = below(draw(starts[:, None], torch.tensor([3, 4])), 9).unbind(1)
    assert stats.chisquare(torch.bincount(9 * dx + dy)).pvalue > UNLIKELY


def test_streams_share_nothing():
    purposes = [(0, "a train"), (0, "a test"), (1, "a train"), (1, "a test"), (10, "a train")]
    starts = torch.tensor([stream(*purpose) for purpose in purposes])
    sequences = draw(starts[:, None], torch.arange(1000))
    drawn = draw(sequences[..., None], torch.arange(50)).flatten()
    assert len(drawn.unique()) == len(purposes) * 1000 * 50
