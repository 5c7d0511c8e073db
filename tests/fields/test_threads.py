"""One field shared by threads: each call sees its own weights, and nobody else's."""

import copy
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import nanode
from nanode.fields.swap import turns_of
from nanode.stages import Stage
from tests.fields.modules import sample
from tests.trajectories.samples import stirred

THREADS, ROUNDS = 4, 60


def together(jobs):
    """Run the jobs at once, each many times; the exception of any is raised here."""
    barrier = threading.Barrier(len(jobs))

    def work(job):
        for _ in range(ROUNDS):
            barrier.wait(timeout=30)
            job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(work, job) for job in jobs]:
            future.result()


class Slow(nn.Module):
    """Gives other threads a chance between two uses of its weights."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        y = self.module(x)
        threading.Event().wait(1e-4)
        return y + self.module(x)


def checked(field, t, x, expected):
    def job():
        assert torch.equal(field(t, x), expected)

    return job


def test_two_fields_of_one_module():
    """Constant weights stay in a module that others may use, too."""
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    own, x = list(module.parameters()), torch.randn(2, 16)
    checkpointed = nanode.Checkpointed()
    blocks = [
        nanode.ODEBlock(nanode.Autonomous(Slow(module)), 4, gradient=checkpointed) for _ in "ab"
    ]
    together([lambda block=block: block(x).sum().backward() for block in blocks])
    assert all(a is b for a, b in zip(module.parameters(), own, strict=True))


class Both(nn.Module):
    def __init__(self, one, other):
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x):
        return self.one(0.5, x) + self.other(0.5, x)


def test_all_threads_take_turns_in_one_order():
    """Else two of them could wait for each other."""
    fields = [nanode.TimeVarying(nn.Linear(4, 4), nanode.Trigonometric(1)) for _ in "ab"]
    one, other = (nanode.Autonomous(Both(*order)) for order in (fields, fields[::-1]))
    assert len(turns_of(one)) > 1
    assert turns_of(one) == turns_of(other)
    for field in (one, copy.deepcopy(one)):
        outer, inner = (part._lender.turns for part in (field, field.module.one))
        turns = turns_of(field)
        assert turns.index(outer[0]) < turns.index(inner[0])


@pytest.mark.parametrize("kind", ["linear", "nested", "lstm", "attention", "weight_norm"])
def test_threads_with_their_own_times(kind):
    module, x = sample(kind)
    field = stirred(nanode.TimeVarying(Slow(module), nanode.Trigonometric(3)))
    times = [k / THREADS for k in range(THREADS)]
    expected = [field(t, x) for t in times]
    for a, b in itertools.pairwise(expected):
        assert not torch.allclose(a, b)
    together([checked(field, t, x, y) for t, y in zip(times, expected, strict=True)])
    assert torch.equal(field(times[1], x), expected[1])


def test_threads_with_their_own_weights():
    module = Slow(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    field = nanode.TimeVarying(module, nanode.Legendre(2), overrides={"module.0": None})
    own = field.module.module[0].weight
    x = torch.randn(3, 4)
    jobs = []
    for seed in range(THREADS):
        generator = torch.Generator().manual_seed(seed)
        weights = {
            name: torch.randn(w.shape, generator=generator)
            for name, w in field.weights_at(0.0).items()
        }
        expected = field.evaluate(weights, Stage.alone(0.0), x)

        def job(weights=weights, expected=expected):
            assert torch.equal(field.evaluate(weights, Stage.alone(0.0), x), expected)

        jobs.append(job)
    plain = field(0.5, x)
    jobs.append(checked(field, 0.5, x, plain))
    together(jobs)
    assert field.module.module[0].weight is own


def gated(module):
    members = [nn.Linear(4, 4), nanode.TimeVarying(module, nanode.Legendre(2))]
    return stirred(nanode.Gated(members))


@pytest.mark.parametrize("make", [nanode.Autonomous, nanode.TimeAppended, gated])
def test_other_fields(make):
    field = make(Slow(nn.Linear(4, 4)))
    x = torch.randn(3, 4)
    times = [k / THREADS for k in range(THREADS)]
    expected = [field(t, x) for t in times]
    together([checked(field, t, x, y) for t, y in zip(times, expected, strict=True)])


def test_backward_in_threads():
    field = stirred(nanode.TimeVarying(Slow(nn.Linear(4, 4)), nanode.Trigonometric(2)))
    x = torch.randn(3, 4)
    parameters = [*field.parameters()]
    jobs = []
    for k in range(THREADS):
        t = k / THREADS
        expected = torch.autograd.grad(field(t, x).square().sum(), parameters)

        def job(t=t, expected=expected):
            got = torch.autograd.grad(field(t, x).square().sum(), parameters)
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))

        jobs.append(job)
    together(jobs)


@pytest.mark.parametrize(
    "make",
    [
        nanode.Autonomous,
        lambda module: nanode.TimeVarying(
            module, nanode.Constant(), overrides={"linear.weight": None}
        ),
    ],
    ids=["autonomous", "time_varying"],
)
def test_weights_lent_to_one_thread_are_not_read_by_another(make):
    """A recomputing backward pass lends detached copies while another thread starts its solve."""

    class Waits(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.inside, self.read = threading.Event(), threading.Event()

        def forward(self, x):
            self.inside.set()
            # The reader has to wait for the end of this call; if it doesn't, let it finish here.
            self.read.wait(0.2)
            return self.linear(x)

    module = Waits()
    own = module.linear.weight
    field = make(module)
    lent = {name: w.detach().clone() for name, w in field.weights_at(0.0).items()}
    lender = threading.Thread(target=lambda: field.evaluate(lent, Stage.alone(0.0), torch.ones(2)))
    lender.start()
    assert module.inside.wait(10)
    seen = field.weights_at(0.0)["linear.weight"]
    module.read.set()
    lender.join()
    assert seen is own


def test_a_field_that_calls_itself():
    class Deeper(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.field = []  # a list hides it from the module tree

        def forward(self, x, depth):
            if depth == 0:
                return self.linear(x)
            inner = self.field[0](0.1 * depth, x, depth - 1)
            return self.linear(torch.tanh(inner))

    module = Deeper()
    field = stirred(nanode.TimeVarying(module, nanode.Monomial(1), overrides={"linear.bias": None}))
    module.field.append(field)
    x = torch.randn(2, 3)
    a, b = (alpha.view(3, 3) for alpha in field.trajectory.coefficients.linear.weight)
    bias = module.linear.bias
    expected = x @ (a + 0.1 * b).T + bias  # depth 0 is called at t = 0.1
    expected = torch.tanh(expected) @ (a + 0.2 * b).T + bias
    expected = torch.tanh(expected) @ (a + 0.7 * b).T + bias
    torch.testing.assert_close(field(0.7, x, 2), expected, rtol=1e-13, atol=1e-13)
    assert module.linear.weight is None


def test_copies_do_not_share_a_turn():
    field = nanode.TimeVarying(nn.Linear(2, 2), nanode.Constant())
    other = copy.deepcopy(field)
    x = torch.ones(2)
    done = threading.Event()

    class Blocks(nn.Module):
        def forward(self, x):
            assert done.wait(10)  # until the copy has answered
            return x

    field.module.register_forward_hook(lambda *_: Blocks()(x))
    thread = threading.Thread(target=lambda: field(0.0, x))
    thread.start()
    other(0.0, x)
    done.set()
    thread.join()
    assert not thread.is_alive()


def shared_field():
    torch.manual_seed(0)
    module = nn.Sequential(Slow(nn.Linear(4, 4)), nn.Tanh())
    return nanode.TimeVarying(module, nanode.Chebyshev(1), overrides={"*.bias": None})


SOLVES = {
    "adjoint": lambda f: nanode.ODEBlock(f, None, nanode.Adaptive(), nanode.Backsolve()),
    "checkpointed": lambda f: nanode.ODEBlock(f, 3, gradient=nanode.Checkpointed()),
    "reversal": lambda f: nanode.ODEBlock(f, 3, nanode.Coupled(), nanode.Reversal()),
    "gated": lambda f: nanode.ODEBlock(nanode.Gated([f]), 3, gradient=nanode.Checkpointed()),
}


@pytest.mark.parametrize("solve", SOLVES)
def test_parameters_put_in_for_a_backward_pass_are_nobody_elses(solve, monkeypatch):
    """The adjoint lends its own parameters, and so do all where parameters have hooks."""
    monkeypatch.setitem(globals(), "ROUNDS", 6)
    block = SOLVES[solve](shared_field())
    own = dict(block.named_parameters())
    for parameter in own.values():
        parameter.register_hook(lambda grad: grad)
    x = torch.randn(2, 4)

    def grads():
        return torch.autograd.grad(block(x).sum(), list(own.values()), allow_unused=True)

    expected = grads()

    def job():
        for found, right in zip(grads(), expected, strict=True):
            assert (found is None) == (right is None)
            assert right is None or torch.allclose(found, right, atol=1e-5)

    together([job] * THREADS)
    assert all(p is own[name] for name, p in block.named_parameters())


def test_a_state_dict_holds_no_lent_weights(monkeypatch):
    monkeypatch.setitem(globals(), "ROUNDS", 20)
    block = SOLVES["checkpointed"](shared_field())
    model, x, keys = nn.Sequential(block), torch.randn(2, 4), None
    keys = list(model.state_dict())

    def solve():
        with torch.no_grad():
            model(x)

    def save():
        for _ in range(20):
            assert list(model.state_dict()) == keys

    together([solve, save, solve])


def test_an_inner_field_waits_for_the_outer(monkeypatch):
    """The outer one lends its module all weights, also those of the field inside."""
    monkeypatch.setitem(globals(), "ROUNDS", 10)
    inner = SOLVES["checkpointed"](shared_field())
    outer = nanode.ODEBlock(
        nanode.Autonomous(nn.Sequential(inner)), 2, gradient=nanode.Checkpointed()
    )
    x = torch.randn(2, 4)

    def around():
        outer(x).sum().backward()

    def inside():
        for _ in range(5):
            assert inner(x).requires_grad
            assert all(v.requires_grad for v in inner.state_dict(keep_vars=True).values())

    together([around, inside])


def test_torch_s_cache_and_turns_are_taken_in_one_order(monkeypatch):
    monkeypatch.setitem(globals(), "ROUNDS", 5)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    inner = nanode.ODEBlock(nanode.Autonomous(Slow(layer)), 2)
    outer = nanode.ODEBlock(nanode.Autonomous(nn.Sequential(inner)), 2)
    x = torch.randn(2, 4)
    with nn.utils.parametrize.cached(), torch.no_grad():
        together([lambda: outer(x), lambda: inner(x)] * 2)


def test_locks_are_taken_in_one_order():
    """A field inside another beside one by itself, where torch's cache has a lock of its own."""

    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            with torch.enable_grad():
                z = x.detach().requires_grad_()
                y = nanode.odeint(lambda t, u: -u, z, steps=2, gradient=nanode.Checkpointed())
                (grad,) = torch.autograd.grad(y.square().sum(), z)
            return self.linear(x) + grad

    outer = nanode.ODEBlock(nanode.TimeVarying(Energy(), nanode.Chebyshev(2)), 3)
    done = []

    def nested():
        for _ in range(100):
            with torch.no_grad():
                outer(torch.ones(2, 3))
        done.append("nested")

    def plain():
        for _ in range(1000):
            x = torch.ones(2, 3, requires_grad=True)
            y = nanode.odeint(lambda t, u: -u, x, steps=2, gradient=nanode.Checkpointed())
            y.sum().backward()
        done.append("plain")

    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with parametrize.cached():
            threads = [threading.Thread(target=job, daemon=True) for job in (nested, plain)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    finally:
        sys.setswitchinterval(often)
    assert sorted(done) == ["nested", "plain"]
