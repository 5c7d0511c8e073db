"""What a field of moving weights refuses, and how it says so."""

import copy

import pytest
import torch
from torch import nn

import nanode


def refused(message, module=None, *args, **options):
    """The call is refused, and the module is as it was."""
    module = nn.Linear(2, 2) if module is None else module
    before = [(name, p) for name, p in module.named_parameters()]
    with pytest.raises(ValueError, match=message):
        nanode.TimeVarying(module, *args, **options)
    after = [(name, p) for name, p in module.named_parameters()]
    assert all(a[0] == b[0] and a[1] is b[1] for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("pattern", ["wieght", "0", "weight.", "*.bias", ""])
def test_refuses_an_override_that_names_no_parameter(pattern):
    refused(
        "names no parameter; there are: weight, bias",
        None,
        nanode.Legendre(2),
        overrides={pattern: None},
    )


def test_refuses_a_module_without_parameters():
    refused(r"Sequential has no parameters.*nanode\.Autonomous", nn.Sequential(), nanode.Constant())
    refused("ReLU has no parameters", nn.ReLU(), nanode.Constant())


def test_refuses_a_module_whose_weights_already_move():
    field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Constant())
    refused("Linear in this module has given its weights", field.module, nanode.Constant())


def test_refuses_neither_or_both_of_basis_and_weights():
    refused("either basis= or weights=, and not both", None)
    refused("either basis=", None, nanode.Constant(), weights=nanode.Hypernetwork)


def test_refuses_a_start_for_another_kind_of_trajectory():
    refused("start= belongs to basis=", None, start=nanode.Held(), weights=nanode.Hypernetwork)


def test_refuses_an_unknown_start():
    refused("must be a Start or \"untied\", got 'random'", None, nanode.Legendre(2), start="random")


@pytest.mark.parametrize("basis", ["chebyshev-3", nanode.Chebyshev, 3], ids=str)
def test_refuses_what_is_no_basis(basis):
    refused(r"basis must be a Basis such as nanode\.Chebyshev", None, basis)


@pytest.mark.parametrize("motion", ["chebyshev", 3], ids=str)
def test_refuses_an_override_that_is_no_motion(motion):
    message = "'bias' must be a basis, a trajectory factory or None, got"
    refused(message, None, nanode.Legendre(2), overrides={"bias": motion})


def test_refuses_to_leave_everything_constant():
    message = r"every parameter is left constant; use nanode\.Autonomous"
    refused(message, None, nanode.Legendre(2), overrides={"*": None})


def test_refuses_several_intervals():
    refused(
        r"share an interval, got \[\(0\.0, 1\.0\), \(0\.0, 2\.0\)\].*interval=\(t0, t1\)",
        None,
        nanode.Legendre(2),
        overrides={"bias": nanode.Legendre(2, interval=(0.0, 2.0))},
    )
    refused(
        "share an interval",
        None,
        nanode.Legendre(2, interval=(0.0, 2.0)),
        overrides={"bias": nanode.Hypernetwork},
    )


@pytest.mark.parametrize("t", [float("nan"), float("inf"), float("-inf")])
def test_refuses_a_time_that_is_no_number(t):
    field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Constant())
    with pytest.raises(ValueError, match=f"t must be a finite number, got {t!r}"):
        field(t, torch.ones(2))


def test_refuses_many_times():
    field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Constant())
    with pytest.raises(ValueError, match=r"without axes, got shape \(2,\)"):
        field(torch.zeros(2), torch.ones(2))


def test_refuses_whole_numbers():
    module = nn.Linear(2, 2)
    module.count = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
    refused(r"count holds torch\.int64 .*overrides=\{'count': None\}", module, nanode.Constant())
    nanode.TimeVarying(module, nanode.Constant(), overrides={"count": None})


def test_refuses_a_class_for_a_start():
    message = r"start is the class Noisy; write nanode\.Noisy\(\.\.\.\), an instance"
    refused(message, None, nanode.Legendre(2), start=nanode.Noisy)
    refused(r"start must be a Start such as nanode\.Noisy\(\)", None, nanode.Legendre(2), start=3)


def test_refuses_parameters_without_a_shape():
    module = nn.LazyLinear(4)
    refused("weight has no shape yet.*call the module once", module, nanode.Legendre(2))
    module(torch.ones(1, 4))
    nanode.TimeVarying(module, nanode.Legendre(2))


def test_refuses_a_class_for_a_basis():
    with pytest.raises(ValueError, match=r"the class Constant; write nanode\.Constant\(\.\.\.\)"):
        nanode.TimeVarying(
            nn.Linear(2, 2), nanode.Legendre(degree=1), overrides={"bias": nanode.Constant}
        )


def test_refuses_running_statistics_that_came_later():
    module = nn.Sequential(nn.Linear(2, 2))
    field = nanode.TimeVarying(module, nanode.Constant())
    module.append(nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="BatchNorm1d with running statistics"):
        nanode.ODEBlock(field, 2)


@pytest.mark.parametrize(
    ("norm", "advice"),
    [
        (nn.BatchNorm1d(2), r"Use nanode\.BatchNorm .*nanode\.convert_norms\(module\), Group"),
        (nn.SyncBatchNorm(2), r"Pass track_running_stats=False.* leaves a SyncBatchNorm as it is"),
        (
            nn.InstanceNorm1d(2, track_running_stats=True),
            r"Pass track_running_stats=False, or use GroupNorm.* leaves InstanceNorm1d as it is",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_to_do_about_running_statistics_goes_by_the_norm(norm, advice):
    module = nanode.convert_norms(nn.Sequential(nn.Linear(2, 2), norm))
    if not isinstance(norm, nn.BatchNorm1d):  # as it says
        assert module[1] is norm
    module[1] = norm
    refused(advice, module, nanode.Constant())
    norm.track_running_stats = False
    nanode.TimeVarying(module, nanode.Constant())


def test_refuses_a_field():
    field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Constant())
    refused("got TimeVarying, which is a field already", field, nanode.Constant())
    for make in (nanode.Autonomous, nanode.TimeAppended):
        message = f"{make.__name__} makes a field of a module, got TimeVarying, which is a field"
        with pytest.raises(ValueError, match=message):
            make(field)


@pytest.mark.parametrize("make", [nanode.Autonomous, nanode.TimeAppended, nanode.TimeVarying])
def test_refuses_what_is_no_module(make):
    with pytest.raises(ValueError, match=rf"{make.__name__} makes a field of a module, got 3$"):
        make(3)


def test_refuses_a_state_dict_of_another_basis():
    small = nanode.TimeVarying(nn.Linear(2, 2), nanode.Trigonometric(1))
    large = nanode.TimeVarying(nn.Linear(2, 2), nanode.Trigonometric(2))
    # torch's own words say which weight, which size came and which was expected.
    message = r"size mismatch for trajectory\.coefficients\.weight.*\[3, 4\].*\[5, 4\]"
    with pytest.raises(RuntimeError, match=message):
        large.load_state_dict(small.state_dict())


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.SyncBatchNorm(2),
     nn.InstanceNorm2d(2, affine=True, track_running_stats=True)],
    ids=lambda norm: type(norm).__name__,
)  # fmt: skip
def test_refuses_running_statistics(norm):
    module = nn.Sequential(nn.Conv2d(2, 2, 1), norm)
    message = rf"1 is a {type(norm).__name__} with running statistics.*GroupNorm"
    refused(message, module, nanode.Constant())
    with pytest.raises(ValueError, match=message):
        nanode.Autonomous(module)


def test_allows_norms_without_running_statistics():
    module = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.Linear(2, 2))
    alone = copy.deepcopy(module)
    x = torch.randn(5, 2)
    assert torch.equal(nanode.TimeVarying(module, nanode.Constant())(0.1, x), alone(x))


@pytest.mark.parametrize("overrides", [["weight"], {3: None}], ids=str)
def test_refuses_overrides_without_names(overrides):
    refused("overrides must map names", None, nanode.Legendre(2), overrides=overrides)


def test_refuses_what_makes_no_trajectory():
    refused("weights must make a trajectory", None, weights="hyper")


@pytest.mark.parametrize("basis", [3, nanode.Legendre], ids=str)
def test_gates_are_refused_another_thing_than_a_basis(basis):
    with pytest.raises(ValueError, match="basis must be a Basis such as"):
        nanode.Gated([nn.Linear(2, 2)], basis)


def test_a_field_whose_coefficients_have_gone():
    inner = nanode.TimeVarying(nn.Linear(4, 4), nanode.Legendre(2))
    outer = nanode.TimeVarying(nanode.ODEBlock(inner, 2), nanode.Legendre(1))
    assert outer(0.2, torch.ones(1, 4)).shape == (1, 4)
    for use in (
        lambda: inner(0.3, torch.ones(4)),
        lambda: inner.weights_at(0.3),
        lambda: nanode.odeint(inner, torch.ones(4), steps=2),
    ):
        with pytest.raises(ValueError, match="have gone to a field that was made of"):
            use()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_refuses_sparse_gradients_of_weights_that_move(kind):
    module = nn.ModuleDict({"table": kind(4, 2, sparse=True), "layer": nn.Linear(2, 2)})
    refused(r"table\.weight is to have sparse gradients", module, nanode.Legendre(2))
    nanode.TimeVarying(module, nanode.Legendre(2), overrides={"table": None})


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("inside", [False, True])
def test_refuses_weights_of_a_scripted_module(inside):
    module = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    module = nn.Sequential(module) if inside else module
    refused(r"weight belongs to a ScriptModule", module, nanode.Legendre(2))
    x = torch.randn(3, 2)
    assert torch.equal(nanode.Autonomous(module)(0.0, x), module(x))
