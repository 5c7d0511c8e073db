"""Walks by Givens rotations and the trigonometric polynomials that they are."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import nanode


def rotation(size, i, j, angle):
    g = np.eye(size)
    g[i, i] = g[j, j] = np.cos(angle)
    g[i, j], g[j, i] = np.sin(angle), -np.sin(angle)
    return g


def product(turns, angle, size):
    """Rotations multiplied one by one, by their definition in the paper."""
    w = np.eye(size)
    for i, j, *multiple in turns:
        w = w @ rotation(size, i, j, angle * (multiple[0] if multiple else 1))
    return w


def random_walk(rng, multiples):
    size = int(rng.integers(2, 9))
    turns = []
    for _ in range(int(rng.integers(1, 13))):
        i, j = rng.choice(size, 2, replace=False)  # numpy's integers serve as well as Python's
        turns.append((i, j, rng.choice([-3, -2, -1, 1, 2, 3])) if multiples else (i, j))
    return turns, size


def evaluated(coefficients, angle):
    """A₀ + Σ Aₙ cos nθ + Bₙ sin nθ."""
    degree = len(coefficients) // 2
    n = np.arange(1, degree + 1)
    waves = np.concatenate([[1.0], np.cos(n * angle), np.sin(n * angle)])
    return np.tensordot(waves, coefficients.numpy(), axes=1)


@pytest.mark.parametrize("multiples", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_coefficients_reproduce_the_walk(seed, multiples):
    """200 walks; products of 12 rotations round to about 1e-15, sums of 73 waves to 1e-14."""
    rng = np.random.default_rng(seed)
    turns, size = random_walk(rng, multiples)
    coefficients = nanode.givens_coefficients(turns, size)
    degree = sum(abs(turn[2]) if multiples else 1 for turn in turns)
    assert coefficients.shape == (2 * degree + 1, size, size)
    for angle in rng.uniform(-10, 10, 5):
        expected = product(turns, angle, size)
        np.testing.assert_allclose(evaluated(coefficients, angle), expected, rtol=0, atol=1e-12)
        got = nanode.givens_product(turns, float(angle), size)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)


def test_coefficients_are_exact():
    turns, size = random_walk(np.random.default_rng(5), multiples=False)
    coefficients = nanode.givens_coefficients(turns, size).numpy()
    scaled = coefficients * 2.0 ** (len(turns) - 1)
    assert len(turns) > 5
    assert np.array_equal(scaled, np.round(scaled))


def test_the_constant_term_the_paper_leaves_out():
    coefficients = nanode.givens_coefficients([(0, 1)], 3).numpy()
    assert np.array_equal(coefficients[0], np.diag([0.0, 0.0, 1.0]))
    # cos² θ = 1/2 + cos 2θ / 2: it shows on coordinates that are turned, too.
    twice = nanode.givens_coefficients([(0, 1), (0, 2)], 3).numpy()
    assert twice[:, 0, 0].tolist() == [0.5, 0.0, 0.5, 0.0, 0.0]


def test_products_for_many_angles_at_once_and_their_gradient():
    turns = [(0, 2), (1, 0, -2)]
    angles = torch.randn(4, 2, requires_grad=True)
    w = nanode.givens_product(turns, angles, 3)
    assert w.shape == (4, 2, 3, 3)
    expected = product(turns, angles[3, 1].item(), 3)
    np.testing.assert_allclose(w[3, 1].detach(), expected, rtol=0, atol=1e-15)
    torch.autograd.gradcheck(lambda a: nanode.givens_product(turns, a, 3), (angles,))


# ---- as a start


def gap(w):
    w = w.detach().numpy()
    gram = w.T @ w if len(w) >= w.shape[1] else w @ w.T
    return np.abs(gram - np.eye(len(gram))).max()


def nearest(w):
    u, _, vh = np.linalg.svd(w.detach().numpy(), full_matrices=False)
    return u @ vh


@pytest.mark.parametrize("frequency", [1.0, 2 * np.pi, 0.3])
@pytest.mark.parametrize("interval", [(0.0, 1.0), (-1.5, 2.0)], ids=str)
def test_weights_walk_from_the_start(interval, frequency):
    turns = [(0, 1), (2, 3, -2), (1, 4)]
    module = nn.Linear(5, 5)
    q, bias = nearest(module.weight), module.bias.detach().clone()
    basis = nanode.Trigonometric(order=6, frequency=frequency, interval=interval)
    field = nanode.TimeVarying(module, basis, start=nanode.GivensWalk(turns))
    for t in np.linspace(*interval, 9):
        w = field.weights_at(float(t))
        expected = q @ product(turns, frequency * (t - interval[0]), 5)
        np.testing.assert_allclose(w["weight"].detach(), expected, rtol=0, atol=1e-12)
        assert gap(w["weight"]) <= 1e-12
        assert torch.equal(w["bias"], bias)
    np.testing.assert_allclose(field.weights_at(interval[0])["weight"].detach(), q, atol=1e-13)


@pytest.mark.parametrize("shape", [(6, 3), (2, 5)], ids=str)
def test_rectangular_weights_walk_with_orthonormal_sides(shape):
    path = nanode.Expansion(
        {"w": torch.randn(*shape)},
        nanode.Trigonometric(3),
        nanode.GivensWalk([(0, 3), (1, 2), (4, 0)]),
    )
    ends = [path(t)["w"] for t in (0.0, 0.5, 1.0)]
    assert max(gap(w) for w in ends) <= 1e-12
    assert (ends[1] - ends[0]).abs().max() > 0.1


def test_kernels_walk_as_matrices():
    kernel = torch.randn(4, 2, 3, 3)
    path = nanode.Expansion({"w": kernel}, nanode.Trigonometric(1), nanode.GivensWalk([(0, 17)]))
    assert path(0.8)["w"].shape == kernel.shape
    assert gap(path(0.8)["w"].flatten(1)) <= 1e-12


def test_walks_by_name():
    given = {"a": torch.randn(3, 3), "b": torch.randn(3, 3)}
    path = nanode.Expansion(given, nanode.Trigonometric(1), nanode.GivensWalk({"a": [(0, 1)]}))
    assert gap(path(0.6)["a"]) <= 1e-12
    assert torch.equal(path(0.6)["b"], given["b"])


def test_one_weight_walks_beside_others():
    basis = nanode.Trigonometric(1)
    field = nanode.TimeVarying(
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
        nanode.Chebyshev(2),
        overrides={
            "1.weight": partial(
                nanode.Expansion,
                basis=basis,
                start=nanode.GivensWalk(
                    [
                        (0, 1),
                    ]
                ),
            )
        },
        orthogonal={"0": nanode.Cayley()},
    )
    q = field.weights_at(0.0)["1.weight"].detach().numpy()
    w = field.weights_at(0.6)["1.weight"].detach().numpy()
    np.testing.assert_allclose(w, q @ rotation(3, 0, 1, 0.6), rtol=0, atol=1e-12)


# ---- bad input


@pytest.mark.parametrize(
    "turn", [(0, 0), (0, 3), (-1, 0), (0, 1, 0), (0, 1, 0.5), (0.0, 1), (0,), (0, 1, 2, 3), 5, "01"]
)
def test_refuses_other_turns(turn):
    message = r"two different coordinates below 3.*whole multiple"
    with pytest.raises(ValueError, match=message):
        nanode.givens_coefficients([(0, 1), turn], 3)
    with pytest.raises(ValueError, match=message):
        nanode.givens_product([turn], 0.1, 3)


def test_refuses_an_empty_walk():
    with pytest.raises(ValueError, match="at least one turn"):
        nanode.givens_coefficients([], 3)


@pytest.mark.parametrize(
    ("given", "basis", "turns", "message"),
    [
        ("w", nanode.Trigonometric(1), [(0, 1), (1, 2)], r"'w'.*degree 2.*order 1.*\(order=2\)"),
        ("w", nanode.Chebyshev(4), [(0, 1)], "'w'.*Trigonometric basis, got Chebyshev"),
        ("w", nanode.Trigonometric(2), [(0, 3)], r"'w'.*below 3.*got \(0, 3\)"),
        ("w", nanode.Trigonometric(2), {"v": [(0, 1)]}, "'v'; by this basis move: w"),
        ("b", nanode.Trigonometric(2), [(0, 1)], "none of b is a matrix"),
        ("b", nanode.Trigonometric(2), {"b": [(0, 1)]}, r"'b'.*expected a real matrix"),
        (
            "c",
            nanode.Trigonometric(2),
            [(0, 1)],
            "'c'.*expected a real matrix, got torch.complex64",
        ),
        ("zero", nanode.Trigonometric(2), [(0, 1)], "'zero'.*rank is 0 of 3"),
    ],
)
def test_start_refuses(given, basis, turns, message):
    values = {"w": torch.eye(3), "b": torch.zeros(3), "zero": torch.zeros(3, 3)}
    values["c"] = torch.eye(3, dtype=torch.complex64)
    with pytest.raises(ValueError, match=message):
        nanode.Expansion({given: values[given]}, basis, nanode.GivensWalk(turns))


def test_a_walk_of_free_numbers_is_refused():
    with pytest.raises(ValueError, match="start of the free numbers, not of the weights"):
        nanode.TimeVarying(
            nn.Linear(3, 3),
            nanode.Trigonometric(2),
            start=nanode.GivensWalk([(0, 1)]),
            orthogonal=nanode.Householder(),
        )
