"""The VGG of public SVG, written out once more from its description in plain PyTorch."""

import torch
import torch.nn.functional as F

from nanode.models.video import create

SLOPE = 0.2


def normed(h, norm):
    return F.batch_norm(h, None, None, norm.weight, norm.bias, training=True)


def layers(h, parts):
    """3×3 convolution, norm, leaky ReLU, again and again."""
    for convolution, norm in zip(parts[::3], parts[1::3], strict=True):
        h = F.conv2d(h, convolution.weight, convolution.bias, padding=1)
        h = F.leaky_relu(normed(h, norm), SLOPE)
    return h


def leaves(stage):
    return [part for part in stage.modules() if not list(part.children())]


def test_encoder_and_decoder():
    torch.manual_seed(0)
    model = create("svg", width=2, size=32, g_dim=6, z_dim=3, rnn_size=5).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    h = frames = torch.rand(3, 1, 32, 32, dtype=torch.float64)
    skips = []
    for n, stage in enumerate(model.encoder.stages):
        h = layers(F.max_pool2d(h, 2) if n else h, leaves(stage))
        skips.append(h)
    convolution, norm = model.encoder.head[:2]
    h = F.conv2d(F.max_pool2d(h, 2), convolution.weight, convolution.bias)
    features = torch.tanh(normed(h, norm)).flatten(1)
    got, own = model.encoder(frames)
    assert torch.allclose(got, features, atol=1e-10)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(own, skips, strict=True))

    convolution, norm = model.decoder.root[:2]
    h = F.conv_transpose2d(features[:, :, None, None], convolution.weight, convolution.bias)
    h = F.leaky_relu(normed(h, norm), SLOPE)
    *before, last = model.decoder.stages
    for stage, skip in zip((*before, last), reversed(skips), strict=True):
        nearest = h.repeat_interleave(2, 2).repeat_interleave(2, 3)
        h = torch.cat([nearest, skip], 1)
        parts = leaves(stage)
        h = layers(h, parts[:-1] if stage is last else parts)
    h = F.conv_transpose2d(h, parts[-1].weight, parts[-1].bias, padding=1)
    assert torch.allclose(model.decoder(features, skips), torch.sigmoid(h), atol=1e-10)
