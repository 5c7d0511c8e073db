import copy

import pytest
import torch
from torch import nn

import nanode


def block(solver, steps=8, **field):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    moving = nanode.TimeVarying(
        module, nanode.Chebyshev(degree=2), start=nanode.Noisy(0.5), **field
    )
    return nanode.ODEBlock(moving, steps, solver)


X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)


def test_exact_methods_have_no_error_and_backsolve_has_one():
    report = nanode.check_gradients(block(nanode.Euler()), X)
    assert report.worst("Checkpointed") < 1e-14
    # Euler's continuous adjoint is off by the order of a step, 1/8 here.
    assert 0.01 < report.worst("Backsolve") < 1
    assert "Reversal" in report.refused
    assert "Coupled" in report.refused["Reversal"]
    assert report.drift is None


def test_reversal_is_exact_up_to_rounding_and_its_drift_is_measured():
    report = nanode.check_gradients(block(nanode.Coupled()), X)
    assert report.worst("Reversal") < 1e-13
    assert report.drift < 1e-14
    assert "Backsolve" in report.refused


def test_drift_is_what_undoing_amplifies():
    """Each undone step divides by the coupling: rounding grows as its power."""
    drift = {}
    for coupling in (0.99, 0.9):
        solver = nanode.Coupled(nanode.Euler(), coupling=coupling)
        checked = nanode.ODEBlock(block(nanode.Coupled()).field.float(), 100, solver)
        drift[coupling] = nanode.reversal_drift(checked, X.float())
    assert 1e-8 < drift[0.99] < 1e-4
    # 0.9⁻¹⁰⁰ is 4e4, 0.99⁻¹⁰⁰ is 3.
    assert 100 < drift[0.9] / drift[0.99] < 1e6


def test_drift_is_relative_to_the_state():
    """Of a linear field, by a power of two: both solves round alike."""
    field = nanode.Autonomous(nn.Linear(3, 3, bias=False).double())
    linear = nanode.ODEBlock(field, 10, nanode.Leapfrog())
    drift = nanode.reversal_drift(linear, X)
    assert drift > 0
    assert nanode.reversal_drift(linear, 1024 * X) == pytest.approx(drift, rel=1e-6, abs=0)


def test_the_drift_from_zero_is_none_where_nothing_moves():
    still = nanode.ODEBlock(nanode.Autonomous(nn.Linear(3, 3, bias=False)), 4, nanode.Leapfrog())
    assert nanode.reversal_drift(still, torch.zeros(2, 3)) == 0


def test_drift_is_that_of_a_solver_changed_later():
    changed = block(nanode.Euler())
    changed.solver = nanode.Leapfrog()
    drift = nanode.reversal_drift(block(nanode.Leapfrog()), X)
    assert nanode.reversal_drift(changed, X) == drift
    assert nanode.check_gradients(changed, X).drift == drift


def test_every_parameter_and_x_have_a_row():
    checked = block(nanode.Leapfrog(), overrides={"0.bias": None})
    rows = nanode.check_gradients(checked, X).rows
    names = {name for name, _ in checked.named_parameters()} | {"x"}
    assert {row.name for row in rows if row.method == "Reversal"} == names


def test_a_wrong_gradient_is_seen():
    """The check itself can fail: a method that doubles a gradient shows an error of one."""

    class Doubled(nanode.Checkpointed):
        def backward(self, job, ledger, kept, grads):
            return tuple(2 * part for part in super().backward(job, ledger, kept, grads))

    report = nanode.check_gradients(block(nanode.Euler()), X, methods=[Doubled()])
    in_x = next(row for row in report.rows if row.name == "x")
    assert in_x.error == pytest.approx(1.0)
    assert in_x.cosine == pytest.approx(1.0)


def test_the_block_and_the_random_state_are_left_alone():
    torch.manual_seed(0)
    module = nn.Sequential(nanode.BatchNorm(3), nn.Linear(3, 3), nn.Dropout(0.5)).double()
    checked = nanode.ODEBlock(nanode.TimeVarying(module, nanode.Legendre(degree=1)), 3)
    before = copy.deepcopy(checked.state_dict())
    state = torch.get_rng_state()
    report = nanode.check_gradients(checked, X)
    # The same masks are drawn for every method.
    assert report.worst("Checkpointed") < 1e-13
    assert all(torch.equal(before[name], value) for name, value in checked.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in checked.parameters())


def test_a_drift_leaves_the_random_state_alone():
    field = nanode.Autonomous(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double())
    state = torch.get_rng_state()
    nanode.reversal_drift(nanode.ODEBlock(field, 3, nanode.Leapfrog()), X)
    assert torch.equal(state, torch.get_rng_state())


def test_the_table_can_be_printed():
    text = str(nanode.check_gradients(block(nanode.Coupled()), X))
    assert "Reversal" in text
    assert "drift" in text


def test_adaptive_blocks_are_refused():
    adaptive = nanode.ODEBlock(block(nanode.Euler()).field, solver=nanode.Adaptive())
    with pytest.raises(ValueError, match="fixed-step"):
        nanode.check_gradients(adaptive, X)


def test_an_adaptive_solve_has_no_drift():
    block = nanode.ODEBlock(nanode.Autonomous(torch.nn.Linear(3, 3)), solver=nanode.Adaptive())
    assert nanode.reversal_drift(block, torch.randn(2, 3)) is None


def test_conditioning_is_compared_too():
    class Steered(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x, push, power):
            return torch.tanh(self.linear(x)) + push**power

    field = nanode.TimeVarying(Steered().double(), nanode.Legendre(degree=1))
    steered = nanode.ODEBlock(field, 4, nanode.Coupled())
    push = torch.linspace(0.5, 1, 3, dtype=torch.float64)
    report = nanode.check_gradients(steered, X, push, 2)
    rows = {row.name: row.error for row in report.rows if row.method == "Reversal"}
    assert rows["conditioning"] < 1e-13


@pytest.mark.parametrize(
    "look", [nanode.check_gradients, nanode.measure_memory, nanode.reversal_drift]
)
def test_a_model_is_refused_and_its_blocks_are_named(look):
    def flow():
        return nanode.ODEBlock(nanode.Autonomous(nn.Linear(3, 3)), 2)

    x = torch.randn(2, 3)
    model = nn.Sequential(nn.Linear(3, 3), flow(), nn.Sequential(flow()))
    message = rf"{look.__name__} takes an ODEBlock, got Sequential; .*'1', '2\.0'.*get_submodule"
    with pytest.raises(ValueError, match=message):
        look(model, x)
    with pytest.raises(ValueError, match=r"got Linear; make one by nanode\.ODEBlock\(field, steps"):
        look(model[0], x)
    look(torch.compile(flow(), backend="eager"), x)


def test_complex_states_and_weights():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).to(torch.complex128)
    field = nanode.TimeVarying(layer, nanode.Chebyshev(2), start=nanode.Noisy(0.5))
    x = 1j * X.to(torch.complex128)
    report = nanode.check_gradients(nanode.ODEBlock(field, 8, nanode.Coupled()), x)
    assert report.worst("Reversal") < 1e-13
    assert report.drift < 1e-14
    report = nanode.check_gradients(nanode.ODEBlock(field, 8, nanode.Euler()), x)
    assert report.worst("Checkpointed") < 1e-14
    assert 0.01 < report.worst("Backsolve") < 1


class Graph(nn.Module):
    """Neighbours' features, by a sparse matrix of who is whose."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, near):
        return torch.tanh(near @ self.layer(x))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_sparse_conditioning(layout):
    near = torch.eye(3).roll(1, 0)
    block = nanode.ODEBlock(nanode.TimeVarying(Graph(), nanode.Legendre(1)), 4)
    x, sparse = torch.randn(3, 4), near.to_sparse(layout=layout)
    report = nanode.check_gradients(block, x, sparse)
    assert {row.name for row in report.rows} >= {"x", "conditioning"}
    assert report.worst("Checkpointed") < 1e-6
    held = [nanode.measure_memory(block, x, given).held for given in (sparse, near)]
    assert held[0] == held[1] > 0
