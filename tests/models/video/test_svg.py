"""The video models against the published algorithm, the paper's formula and counted parameters."""

import math

import pytest
import torch
from torch import nn

import nanode
from nanode.block import flows
from nanode.models.video import NAMES, create
from tests.models.video.published import Published


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


# ---- what the specification counts: one channel, 10 latents


@pytest.mark.parametrize(
    ("name", "width", "frames", "whole"),
    [
        ("svg", 64, 20_509_953, 22_760_105),
        ("svg-auto", 64, 20_509_953, 22_760_105),
        ("svg-nanode", 64, 74_715_009, 76_965_161),
        ("svg", 16, 1_678_689, 3_928_841),
        ("svg-auto", 16, 1_678_689, 3_928_841),
        ("svg-nanode", 16, 5_069_313, 7_319_465),
    ],
)
def test_parameter_counts_of_the_specification(name, width, frames, whole):
    model = create(name, width=width)
    assert count(model.encoder, model.decoder) == frames
    assert count(model) == whole


def test_more_layers_a_stage_are_counted_by_hand():
    def layer(inputs, outputs):
        return 9 * inputs * outputs + 3 * outputs

    short, long = (create("svg", width=4, convs_per_stage=n) for n in (2, 4))
    widths = (4, 8, 16, 32)
    more = 2 * sum(layer(n, n) for n in widths)
    assert count(long.encoder) - count(short.encoder) == more
    assert count(long.decoder) - count(short.decoder) == more


# ---- one batch of frames against one frame after the other


@pytest.mark.parametrize("skip", ["original", "last", "every"])
@pytest.mark.parametrize("n_past", [1, 3])
@pytest.mark.parametrize("encode", ["batch", "frame"])
def test_the_model_is_the_published_loop(tiny, clips, skip, n_past, encode):
    model = tiny(skip=skip, encode=encode)
    frames, noise = clips(2, 6)
    found = model(frames, n_past, noise)
    made, moments = Published(model, skip, n_past).train(frames, noise)
    # Stored statistics: batched and single frames differ by rounding only.
    assert torch.allclose(found.frames, made, atol=1e-12)
    own = [
        found.posterior.mean,
        found.posterior.log_variance,
        found.prior.mean,
        found.prior.log_variance,
    ]
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(own, moments, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_in_training_statistics_are_over_all_frames_or_each_time(tiny, clips, name):
    frames, noise = clips(3, 4)
    batch, frame = (tiny(name, encode=encode).train() for encode in ("batch", "frame"))
    made, _ = Published(frame, "original", 2).train(frames, noise)
    assert torch.allclose(frame(frames, 2, noise).frames, made, atol=1e-10)
    assert not torch.allclose(batch(frames, 2, noise).frames, made, atol=1e-3)
    # The first norm sees the first convolution's output of every frame.
    first = tiny(name).train()
    first(frames, 2, noise)
    seen = first.encoder.stages[0][0](frames.flatten(0, 1))
    norm, fresh = first.encoder.stages[0][1], tiny(name).encoder.stages[0][1]
    expected = 0.9 * fresh.running_mean + 0.1 * seen.mean(dim=(0, 2, 3))
    assert torch.allclose(norm.running_mean, expected, atol=1e-12)


def test_skips_matter_after_the_given_frames_only(tiny, clips):
    frames, noise = clips(2, 7)
    made = {skip: tiny(skip=skip)(frames, 3, noise).frames for skip in ("original", "last")}
    same = [torch.equal(made["original"][:, i], made["last"][:, i]) for i in range(6)]
    # Frames 1 and 2 are decoded with the frame before them; 3 and later with frame 1, or 2.
    assert same == [True, True, False, False, False, False]


def test_latents_are_drawn_anew(tiny, clips):
    model = tiny()
    frames, _ = clips(2, 4)
    assert not torch.equal(model(frames, 2).frames, model(frames, 2).frames)


# ---- the flows


def blocks(model):
    return [part for part in model.modules() if isinstance(part, nanode.ODEBlock)]


def test_a_flow_is_the_papers_formula():
    """x ← x + f(x; W(t)) / 3 at t = 0, 1/3, 2/3, with W(t) = a₀ + Σ aₙ cos nt + bₙ sin nt."""
    torch.manual_seed(0)
    model = create("svg-nanode", width=2, size=16, convs_per_stage=3).double().train()
    block = blocks(model)[0]
    for parameter in block.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    x = torch.randn(3, 2, 16, 16, dtype=torch.float64)
    table = dict(block.field.trajectory.coefficients.named_parameters())
    norms = dict(block.field.module.named_parameters())
    state = x
    for t in (0.0, 1 / 3, 2 / 3):
        waves = [1.0] + [f(n * t) for n in (1, 2, 3) for f in (math.cos, math.sin)]
        h = state
        for n in (0, 3):
            kernel, bias = (
                sum(z * row for z, row in zip(waves, _by_wave(table[name]), strict=True))
                for name in (f"{n}.weight", f"{n}.bias")
            )
            h = nn.functional.conv2d(h, kernel.view(2, 2, 3, 3), bias, padding=1)
            weight, shift = norms[f"{n + 1}.weight"], norms[f"{n + 1}.bias"]
            h = nn.functional.batch_norm(h, None, None, weight, shift, training=True)
            h = nn.functional.leaky_relu(h, 0.2)
        state = state + h / 3
    assert torch.allclose(block(x), state, atol=1e-12)


def _by_wave(coefficients):
    """Rows as a₀, a₁, b₁, a₂, b₂, …, whatever order the basis keeps them in."""
    basis = nanode.Trigonometric(order=3)
    t = torch.linspace(0, 1, 50, dtype=torch.float64)
    wanted = [torch.ones_like(t)] + [f(n * t) for n in (1, 2, 3) for f in (torch.cos, torch.sin)]
    values = basis(t)
    places = [
        next(k for k in range(7) if torch.allclose(values[:, k], wave, atol=1e-12))
        for wave in wanted
    ]
    return [coefficients[k] for k in places]


def test_every_run_is_one_flow_and_norm_scales_stay():
    model = create("svg-nanode", width=2, size=16)
    # Four stages of the encoder, and the two of the decoder that have a preserving layer.
    assert len(blocks(model)) == 6
    for block in blocks(model):
        assert [round(float(stage.time), 12) for stage in block._plan.stages] == [
            0.0,
            round(1 / 3, 12),
            round(2 / 3, 12),
        ]
        moving = {name for name, _ in block.field.trajectory.coefficients.named_parameters()}
        assert moving <= {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert blocks(create("svg", width=2, size=16)) == []


def test_auto_is_nanode_with_its_constant_coefficients(tiny, clips):
    frames, noise = clips(2, 4)
    auto, moving = tiny("svg-auto"), tiny("svg-nanode", flow="chebyshev-1")
    moving.load_state_dict(
        {
            new: value.reshape(old.shape)
            for (new, old), value in zip(
                sorted(moving.state_dict().items(), key=_place),
                [value for _, value in sorted(auto.state_dict().items(), key=_place)],
                strict=True,
            )
        }
    )
    assert torch.allclose(
        auto(frames, 2, noise).frames, moving(frames, 2, noise).frames, atol=1e-12
    )


def _place(item):
    return item[0].replace("trajectory.coefficients", "module")


def test_the_start():
    torch.manual_seed(0)
    model = create("svg-nanode", width=16)
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if "lstm" in name:
            assert parameter.abs().max() <= 256**-0.5  # torch's own rule
        elif "trajectory" in name:
            (constant,) = nanode.Trigonometric(order=3).unit().nonzero().flatten().tolist()
            others = torch.arange(7) != constant
            assert not parameter[others].any()
            if name.endswith("weight"):
                assert parameter[constant].std().item() == pytest.approx(0.02, rel=0.1)
        elif name.endswith("bias"):
            assert not parameter.any()
        elif parameter.ndim == 1:  # norms
            assert abs(parameter.mean().item() - 1) < 0.02
            assert 0.005 < parameter.std().item() < 0.04
        elif parameter.numel() > 300:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15)
    norms = [name for name in named if ".module.1.weight" in name]
    assert len(norms) == 6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMES),
        ("svg-nanode", {"flow": "b-nanode-3"}),
        ("svg-nanode", {"flow": "legendre-2", "moving_norms": True}),
        ("svg-nanode", {"flow": "uncon-resnet"}),
        ("svg-nanode", {"flow": "con-resnet", "convs_per_stage": [2, 3, 2, 4]}),
        ("svg-nanode", {"flow": "appnode", "solver": "heun", "steps": 4}),
        ("svg-nanode", {"gradient": "checkpointed"}),
        ("svg-nanode", {"solver": "coupled-euler", "steps": 4, "gradient": "reversal"}),
        ("svg", {"channels": 3, "channels_last": True}),
    ],
    ids=str,
)
def test_every_model_trains_all_its_parameters(name, options):
    torch.manual_seed(0)
    model = create(name, width=2, size=16, g_dim=6, z_dim=3, rnn_size=5, **options)
    frames = torch.rand(2, 5, options.get("channels", 1), 16, 16)
    found = model(frames, 2)
    assert found.frames.shape == (2, 4, *frames.shape[2:])
    assert found.frames.min() > 0
    assert found.frames.max() < 1
    loss = (found.frames - frames[:, 1:]).square().sum()
    loss = loss + sum(part.square().sum() for part in (found.prior.mean, found.prior.log_variance))
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert bool(torch.isfinite(parameter.grad).all()), key
        assert parameter.grad.any(), key


def test_recomputing_gives_the_same_gradients(clips):
    frames, noise = clips(2, 4)
    grads, states = [], []
    for gradient in ("backprop", "checkpointed"):
        torch.manual_seed(0)
        shape = {"size": 16, "width": 2, "g_dim": 6, "z_dim": 3, "rnn_size": 5}
        model = create("svg-nanode", gradient=gradient, **shape).double().train()
        found = model(frames, 2, noise)
        (found.frames.square().sum() + found.prior.at(noise).square().sum()).backward()
        grads.append([p.grad for p in model.parameters()])
        states.append(model.state_dict())
    # The same operations again: any difference is rounding of sums in another order.
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(*grads, strict=True))
    assert all(torch.allclose(states[0][k], states[1][k], atol=1e-12) for k in states[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_reaches_every_flow(tiny, clips, channels):
    frames, noise = clips(2, 4, channels=channels)
    plain, last = (tiny(channels=channels, channels_last=flag) for flag in (False, True))
    last.load_state_dict(plain.state_dict())
    seen = []
    for block in blocks(last):
        block.register_forward_hook(lambda _, inputs, output: seen.extend([inputs[0], output]))
    found = last(frames, 2, noise).frames
    assert torch.allclose(found, plain(frames, 2, noise).frames, atol=1e-12)
    assert len(seen) == 12
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)
    assert not any(x.is_contiguous() for x in seen)


def test_half_precision_keeps_latents_and_pixels_wide():
    model = create("svg-nanode", width=2, size=16, g_dim=6, z_dim=3, rnn_size=5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(torch.rand(2, 4, 1, 16, 16), 2)
    kinds = {found.frames.dtype, found.prior.mean.dtype, found.posterior.log_variance.dtype}
    assert kinds == {torch.float32}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "svg-nanod"}, "Did you mean 'svg-nanode'"),
        ({"name": "svg", "gradient": "checkpointed", "steps": 3}, "leave out steps, gradient"),
        ({"name": "svg", "size": 65}, "multiple of 16.*got 65"),
        ({"name": "svg", "skip": "lasst"}, "Did you mean 'last'"),
        ({"name": "svg", "encode": "frames"}, "Did you mean 'frame'"),
        ({"name": "svg", "convs_per_stage": 1}, "at least 2"),
        ({"name": "svg", "convs_per_stage": [2, 2]}, "one number or 4"),
        (
            {"name": "svg", "convs_per_stage": 2.5},
            "convs_per_stage must be a whole number .*got 2.5",
        ),
        ({"name": "svg", "width": 0}, "at least 1"),
        ({"name": "svg", "rnn_size": 0}, "rnn_size must be a whole number of at least 1, got 0"),
        ({"name": "svg", "predictor_layers": 0}, "predictor_layers must be .* at least 1, got 0"),
        ({"name": "svg", "posterior_layers": 1.5}, "posterior_layers must be a whole number"),
        ({"name": "svg", "prior_layers": 0}, "prior_layers must be"),
        ({"name": "svg-nanode", "solver": "heun"}, "multiple of 2, got 3"),
        ({"name": "svg-nanode", "flow": "anode"}, "widens the state"),
        ({"name": "svg-nanode", "flow": "t-nanod-3"}, "Did you mean 't-nanode-D'"),
        ({"name": "svg-auto", "flow": "uncon-resnet", "moving_norms": False}, "of their own"),
    ],
    ids=str,
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        create(**options)


@pytest.mark.parametrize(
    ("flow", "steps", "moves"),
    [("t-nanode-3", 3, False), ("b-nanode-5", 5, False), ("uncon-resnet", 3, True)],
)
def test_what_flows_are_by_default(flow, steps, moves):
    block = next(iter(flows(create("svg-nanode", width=2, size=16, flow=flow)).values()))
    assert block.steps == steps
    weights = block.field.weights(block.plan().stages)
    assert "0.weight" in weights.moving
    assert ("1.weight" in weights.moving) == moves


@pytest.mark.parametrize(
    ("shape", "n_past", "message"),
    [
        ((2, 5, 1, 17, 17), 2, r"\(1, 16, 16\), got \(2, 5, 1, 17, 17\)"),
        ((2, 5, 3, 16, 16), 2, "channels="),
        ((5, 1, 16, 16), 2, "frames must be"),
        ((2, 1, 1, 16, 16), 1, "at least 2 frames a clip, got 1"),
        ((2, 5, 1, 16, 16), 0, "n_past must be a whole number of at least 1"),
        ((2, 5, 1, 16, 16), 1.5, "n_past must be a whole number of at least 1"),
    ],
)
def test_bad_frames(tiny, shape, n_past, message):
    with pytest.raises(ValueError, match=message):
        tiny()(torch.rand(shape, dtype=torch.float64), n_past)


def test_noise_of_another_shape(tiny):
    frames = torch.rand(2, 5, 1, 16, 16, dtype=torch.float64)
    noise = torch.zeros(1, 1, tiny().latents, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"noise must be \(clips, times - 1, z\) = \(2, 4, "):
        tiny()(frames, 2, noise)
