"""The kernels put together: a bottleneck evaluated, and pulled back, against autograd."""

import pytest
import torch
import torch.nn.functional as F

from nanode.kernels import (
    Norm,
    activate,
    activate_backward,
    activate_sums,
    expand,
    expand_backward,
    moments,
    project,
    project_backward,
    project_backward_sums,
)

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
EPS = 1e-5


def images(a, shape):
    """Rows of pixels as a channels-last batch of images."""
    return a.view(*shape, a.shape[1]).permute(0, 3, 1, 2)


def pixels(a):
    return a.permute(0, 2, 3, 1).reshape(-1, a.shape[1])


def plain(x, states, scale, weights, shape):
    """The update by PyTorch alone, batch statistics differentiated by autograd."""
    w1, w2, w3, *affine = weights

    def active(a, weight, bias):
        var, mean = torch.var_mean(a, 0, correction=0)
        return torch.relu((a - mean) * torch.rsqrt(var + EPS) * weight + bias)

    a = active(x, *affine[:2]) @ w1.mT
    a = pixels(F.conv2d(images(active(a, *affine[2:4]), shape), w2, padding=1))
    return sum(c * s for c, s in states) + scale * active(a, *affine[4:]) @ w3.mT


def forward(x, states, scale, weights, shape):
    w1, w2, w3, *affine = weights
    n1 = Norm(*affine[:2], *moments(x, EPS))
    h1, found = project(x, n1, w1, eps=EPS)
    n2 = Norm(*affine[2:4], *found)
    a2 = activate(h1, n2, dtype=w2.dtype)
    h2 = pixels(F.conv2d(images(a2, shape), w2, padding=1))
    n3 = Norm(*affine[4:], *moments(h2, EPS))
    new, new_moments, _ = expand(h2, n3, w3, scale, states, eps=EPS)
    return new, new_moments, (n1, n2, n3, h1, a2, h2)


def backward(x, g, scale, weights, shape, kept):
    n1, n2, n3, h1, a2, h2 = kept
    w1, w2, w3 = weights[:3]
    ga3, sums3, gw3 = expand_backward(g, scale, h2, n3, w3)
    gh2 = activate_backward(ga3, h2, n3, sums3)
    ga2, gw2, _ = torch.ops.aten.convolution_backward(
        images(gh2, shape),
        images(a2, shape),
        w2,
        None,
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, False],
    )
    ga2 = pixels(ga2).contiguous()
    sums2 = activate_sums(ga2, h1, n2)
    gh1 = activate_backward(ga2, h1, n2, sums2)
    sums1, gw1 = project_backward_sums(gh1, x, n1, w1)
    gx = project_backward(gh1, x, n1, w1, sums1, [(0.7, g)])
    affine = [t for sums in (sums1, sums2, sums3) for t in (sums[1], sums[0])]
    return [gx, gw1, gw2, gw3, *affine]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 9, 11)])
def test_an_evaluation_and_its_vjp(device, shape):
    """In fp32 throughout, so that only a wrong formula can move an element by 1e-4 from float64.

    Where there is no Triton this puts the references together, which then answer for the kernels.
    """
    generator = torch.Generator().manual_seed(1)
    random = lambda *size: torch.randn(*size, generator=generator).to(device)  # noqa: E731
    rows = shape[0] * shape[1] * shape[2]
    x, y, g = random(rows, 48), random(rows, 48), random(rows, 48)
    matrices = [random(16, 48) / 7, random(16, 16, 3, 3) / 12, random(48, 16) / 4]
    affine = [
        t for c in (48, 16, 16) for t in (1 + 0.2 * random(c), 0.2 * random(c))
    ]  # weight, bias of each norm
    weights = [*matrices, *affine]
    with torch.backends.cudnn.flags(allow_tf32=False):
        new, found, kept = forward(x, [(0.7, x), (0.3, y)], 0.5, weights, shape)
        result = backward(x, g, 0.5, weights, shape, kept)

    leaves = [t.double().requires_grad_() for t in (x, *weights)]
    exact = plain(leaves[0], [(0.7, leaves[0]), (0.3, y.double())], 0.5, leaves[1:], shape)
    expected = torch.autograd.grad(exact, leaves, g.double())
    var, mean = torch.var_mean(exact.detach(), 0, correction=0)
    pairs = [
        (new, exact.detach()),
        (found[0], mean),
        (found[1], torch.rsqrt(var + EPS)),
        *zip(result, expected, strict=True),
    ]
    for i, (value, reference) in enumerate(pairs):
        size = reference.abs() + reference.square().mean().sqrt()
        assert ((value.double() - reference).abs() / size).max() < 1e-4, i
