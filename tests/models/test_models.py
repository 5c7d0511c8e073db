"""Every registered model is built, run and differentiated in a tiny size; names are pinned.

``golden.json`` holds the parameter names and shapes of every model: a change to it is a change to
everybody's checkpoints. ``python -m tests.models.test_models`` writes it anew.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import nanode
from nanode.models import create, names
from nanode.models.classifier import PRESETS
from nanode.models.flows import SOLVERS
from nanode.models.layers import group_norm

GOLDEN = Path(__file__).with_name("golden.json")
MODELS = [name.replace("-D", "-3") for name in names()]
TINY = [preset for preset in PRESETS if preset.startswith("tiny")]


def shapes(name: str, preset: str) -> dict[str, list[int]]:
    torch.manual_seed(0)
    model = create(name, preset=preset, channels=1)
    return {key: list(p.shape) for key, p in model.named_parameters()}


@pytest.mark.parametrize("preset", TINY)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_and_all_its_parameters_get_gradients(name, preset):
    torch.manual_seed(0)
    model = create(name, preset=preset, channels=1, classes=7)
    logits = model(torch.randn(3, 1, 8, 8))
    assert logits.shape == (3, 7)
    nn.functional.cross_entropy(logits, torch.tensor([0, 3, 6])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert bool(torch.isfinite(parameter.grad).all()), key
    model.eval()
    one, two = torch.randn(2, 1, 1, 8, 8)
    # Stored statistics: the answer to one image doesn't depend on its companions.
    together = model(torch.cat([one, two]))
    assert torch.allclose(together[:1], model(one), atol=1e-5)


@pytest.mark.parametrize("preset", TINY)
@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_golden_file(name, preset):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert shapes(name, preset) == golden[f"{preset}/{name}"]
    assert len(golden) == len(MODELS) * len(TINY)  # no name that there was


def convolution_weights(model: nn.Module) -> int:
    """Numbers that make up the convolutions inside the flows."""
    return sum(
        parameter.numel()
        for block in model.modules()
        if isinstance(block, nanode.ODEBlock)
        for key, parameter in block.named_parameters()
        # In the networks every third layer is a convolution: 2, 5, 8.
        if key.endswith((".2.weight", ".5.weight", ".8.weight"))
    )


@pytest.mark.parametrize(
    ("name", "multiple"),
    [
        ("auto", 1),
        ("con-resnet", 1),
        ("b-nanode-4", 4),
        ("uncon-resnet", 10),
        ("t-nanode-3", 7),
        ("chebyshev-4", 4),
        ("monomial-2", 2),
        ("legendre-1", 1),
        ("rff-6", 7),
    ],
)
def test_the_paper_block_has_its_69632_weights(name, multiple):
    bottleneck = 256 * 64 + 64 * 64 * 9 + 64 * 256
    assert bottleneck == 69_632
    assert convolution_weights(create(name)) == multiple * bottleneck


def test_the_untied_row_is_a_residual_network():
    """Layer by layer with the weights of its buckets, to rounding."""
    torch.manual_seed(0)
    model = create("uncon-resnet", preset="tiny", channels=1, steps=3).double()
    (block,) = (part for part in model.modules() if isinstance(part, nanode.ODEBlock))
    x = torch.randn(4, 16, 8, 8, dtype=torch.float64)
    state = x
    for k in range(3):
        w = {key: alpha[k] for key, alpha in block.field.trajectory.coefficients.named_parameters()}
        h = state
        for n, (inputs, outputs, size) in enumerate([(16, 4, 1), (4, 4, 3), (4, 16, 1)]):
            h = nn.functional.batch_norm(
                h, None, None, w[f"{3 * n}.weight"], w[f"{3 * n}.bias"], training=True
            )
            kernel = w[f"{3 * n + 2}.weight"].view(outputs, inputs, size, size)
            h = nn.functional.conv2d(torch.relu(h), kernel, padding=size // 2)
        state = state + h
    assert torch.allclose(block(x), state, atol=1e-12)


@pytest.mark.parametrize(
    ("flow", "network"), [("auto", "con-resnet"), ("b-nanode-3", "uncon-resnet")]
)
def test_with_steps_as_long_flows_are_residual_networks(flow, network):
    """So what tells them apart in a table is the scale, and how untied layers start."""
    models = [
        create(name, preset="tiny", channels=1, steps=3, scale=scale).double()
        for name, scale in ((flow, 3.0), (network, None))
    ]
    models[0].load_state_dict(models[1].state_dict())
    x = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    assert torch.equal(models[0](x), models[1](x))


def test_norms_over_the_batch_take_appended_time_off_again():
    """What it adds to a channel is constant, but for the border that a 3×3 convolution sees."""
    model = create("appnode", preset="tiny", channels=1, steps=3).double()
    columns = {k: p for k, p in model.named_parameters() if k.endswith("time_weight")}
    x = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    before, moved = model(x), {1: [], 3: []}
    for column in columns.values():
        kept = column.detach().clone()
        torch.nn.init.normal_(column)
        moved[column.shape[-1]].append((model(x) - before).abs().max().item())
        with torch.no_grad():
            column.copy_(kept)
    assert len(moved[1]) == 2
    assert max(moved[1]) < 1e-12
    assert min(moved[3]) > 1e-4


@pytest.mark.parametrize("preset", PRESETS)
def test_group_norms_divide_any_width(preset):
    """With a sixteenth more channels, 17 say, too."""
    create("anode", preset=preset, norm="group")


@pytest.mark.parametrize(
    ("features", "groups"), [(4, 1), (16, 2), (60, 6), (64, 8), (256, 32), (1024, 32)]
)
def test_groups_have_about_eight_features_and_are_at_most_32(features, groups):
    assert group_norm(features).num_groups == groups


def test_constant_norms_stay_out_of_the_trajectory():
    model = create("b-nanode-3", preset="tiny", moving_norms=False)
    (block,) = (part for part in model.modules() if isinstance(part, nanode.ODEBlock))
    moving = {key for key, _ in block.field.trajectory.coefficients.named_parameters()}
    assert moving == {"2.weight", "5.weight", "8.weight"}


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("-orthogonal")])
def test_orthogonal_variants_are(name):
    torch.manual_seed(0)
    model = create(name, preset="tiny", channels=1)
    assert name.removesuffix("-orthogonal") in MODELS
    model(torch.randn(2, 1, 8, 8)).square().sum().backward()
    with torch.no_grad():  # somewhere, not at the start
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    (block,) = (part for part in model.modules() if isinstance(part, nanode.ODEBlock))
    kernels = {
        key: weight.flatten(1)
        for key, weight in block.field.weights_at(0.7).items()
        if weight.ndim == 4 and not key.endswith("time_weight")
    }
    assert len(kernels) >= 3
    for key, kernel in kernels.items():
        tall = kernel if kernel.shape[0] >= kernel.shape[1] else kernel.mT
        assert torch.allclose(tall.mT @ tall, torch.eye(tall.shape[1]), atol=1e-5), key


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_steps_count_evaluations(solver):
    model = create("t-nanode-2", preset="tiny", channels=1, steps=8, solver=solver)
    (block,) = (part for part in model.modules() if isinstance(part, nanode.ODEBlock))
    model(torch.randn(2, 1, 8, 8))
    before = 1 if solver in ("leapfrog", "reversible-heun") else 0  # the first step
    assert block.nfe.forward == 8 + before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "t-nanod-10"}, "Did you mean 't-nanode-D'"),
        ({"name": "chebychev-4"}, "Did you mean 'chebyshev-D'"),
        ({"name": "t-nanode"}, "Did you mean 't-nanode-D'"),
        ({"name": "t-nanode-D"}, "stands for a number; give one, such as 't-nanode-10'"),
        ({"name": "chebyshev-D-independent"}, "such as 'chebyshev-10-independent'"),
        ({"name": "b-nanode-0"}, "at least 1"),
        ({"name": "auto-3"}, "got 'auto-3'"),
        ({"name": "t-nanode-03"}, "got 't-nanode-03'. Did you mean 't-nanode-D'"),
        ({"name": "t-nanode-３"}, "got 't-nanode-３'. Did you mean 't-nanode-D'"),
        ({"name": "t-nanode-٣-orthogonal"}, "got 't-nanode-٣-orthogonal'. Did you mean 't-nano"),
        ({"name": "auto", "preset": "papper"}, "Did you mean 'paper'"),
        ({"name": "auto", "solver": ["euler"]}, "solver must be one of euler, .*; got"),
        ({"name": "auto", "solver": "eulr"}, "Did you mean 'euler'"),
        ({"name": "auto", "gradient": "adjoint"}, "must be one of backprop, checkpointed"),
        ({"name": "auto", "steps": 0}, "at least 1"),
        ({"name": "auto", "steps": 7, "solver": "rk4"}, "multiple of 4, got 7$"),
        ({"name": "auto", "solver": "rk4"}, "multiple of 4, got 10, which is the default"),
        ({"name": "auto", "classes": 1}, "at least 2"),
        ({"name": "uncon-resnet", "moving_norms": False}, "norms of their own"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        create(**options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("b-nanode-3", {}),
        ("b-nanode-17", {}),
        ("b-nanode-5", {"solver": "coupled-euler"}),
        ("b-nanode-5", {"solver": "leapfrog"}),
    ],
)
def test_every_bucket_gets_a_gradient(name, options):
    torch.manual_seed(0)
    model = create(name, preset="tiny", channels=1, **options)
    model(torch.randn(3, 1, 8, 8)).square().sum().backward()
    buckets = int(name.split("-")[-1])
    found = [p for key, p in model.named_parameters() if ".coefficients." in key]
    rows = [p.grad.flatten(1).norm(dim=1) for p in found]
    assert {len(norms) for norms in rows} == {buckets}
    assert all(bool((norms > 0).all()) for norms in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 4}, r"takes 4 steps: of its 5 buckets .* steps=5 "),
        ({"steps": 6, "solver": "coupled-euler"}, r"takes 3 steps: of its 5 buckets .* steps=10 "),
    ],
)
def test_buckets_that_are_never_used_are_told(options, message):
    with pytest.warns(UserWarning, match=message):
        create("b-nanode-5", preset="tiny", **options)


@pytest.mark.filterwarnings("error")
def test_as_many_steps_as_buckets_use_all_of_them():
    create("b-nanode-5", preset="tiny", steps=5)


if __name__ == "__main__":
    found = {f"{preset}/{name}": shapes(name, preset) for preset in TINY for name in MODELS}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
