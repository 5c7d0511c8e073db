"""The fast path: the field compiled once for all stages, the whole solve captured on a GPU.

The same methods as ever, with two things under them. Evaluations go through one compiled graph and
its compiled derivative: a stage's number and time are tensors there, so that every stage can share
it. On a GPU the solve and its backward pass are captured as CUDA graphs (``capture.py``).

Note *why not torch.func*: one graph for "undo a step and differentiate it" through
``torch.func.vjp`` would save passes over the state. But traced by ``torch.compile`` it ignores the
backward of a custom ``autograd.Function`` and differentiates its forward instead, without a word
(torch 2.11 and 2.13): wrong gradients for any field that contains one.
"""

from __future__ import annotations

import threading
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from fractions import Fraction
from functools import partial
from itertools import chain
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec

from nanode.bases import Basis
from nanode.fields.field import Field
from nanode.fields.swap import taken, turns_of
from nanode.fields.walk import hooks, traits
from nanode.gradients.backprop import Backprop
from nanode.gradients.backsolve import Backsolve
from nanode.gradients.capture import Captured, capturing, hooks_on_saved_tensors
from nanode.gradients.fused import Fused, serves
from nanode.gradients.gradient import Gradient
from nanode.gradients.layout import preparation
from nanode.gradients.precision import arithmetic, autocast_of
from nanode.gradients.problem import (
    CHANGED,
    Plan,
    Problem,
    as_they_are,
    evaluate_checked,
    has_versions,
)
from nanode.gradients.randomness import as_drawn, random_state
from nanode.gradients.snapshot import keep
from nanode.kernels.language import serves as kernels_serve
from nanode.solvers.stepper import State
from nanode.stages import Stage
from nanode.tracing import traced, untraceable, written_out
from nanode.trajectories.trajectory import Named

#: Tables know which step a stage belongs to; a compiled evaluation has no use for it.
_NOWHERE = Fraction(0)
#: Numbers in a CPU's state from which compiling can pay. Below, calling compiled code costs more
#: than it saves: 2.5 times as long as plain steps for a network 64 wide and a batch of 32.
WORTH_COMPILING = 1 << 14
#: Devices whose solves are captured.
CAPTURED = ("cuda",)
#: Captured solves of one block, each of which holds its memory: other shapes than these many are
#: captured again.
MOST_KEPT = 8
#: So many captures in a row that are never used again are the last.
MOST_UNUSED = 16
#: What most attributes of modules are besides plain values: asking each whether it is a tensor
#: takes long.
_OTHERS = {type(None), tuple, list, dict, OrderedDict, set}
#: By which a captured solve is found.
Key = tuple[Any, ...]


class Compiled(Gradient):
    """Another gradient method with the field compiled; results differ by rounding only.

    Small states on a CPU run as they are. So do fields that draw random numbers under methods that
    must draw them again; under the others they are not captured. With ``fused``, bottleneck fields
    run by the kernels of ``nanode.kernels`` (on a CPU by their references) instead of compiled
    code; by default they do where the kernels themselves can run.
    """

    def __init__(self, method: Gradient, capture: bool = True, fused: bool | None = None) -> None:
        self.method, self.capture, self.fused = method, capture, fused
        #: None for what can't be compiled; proven once a whole solve went through.
        self._functions: dict[Any, Callable[..., Any] | None] = {}
        self._proven: set[Any] = set()
        self._solves: dict[Key, Captured] = {}
        self._unused = 0
        self._draws: dict[Any, bool] = {}
        self._places: dict[Any, Tensor] = {}
        self._turn = threading.RLock()

    def check(self, plan: Plan) -> None:
        """What the method itself refuses."""
        self.method.check(plan)

    def solve(self, problem: Problem, x: State) -> list[State]:
        """The states at the wanted grid points."""
        if traced() or written_out():
            return self.method.solve(problem, x)
        if not x[0].is_cuda:
            return self._solve(problem, x)
        # While a thread captures, the field's parameters are aliases, which no other should see;
        # kernels run, and graphs are captured, on the device that is current.
        with nullcontext() if capturing() else self._turn, torch.cuda.device(x[0].device):
            return self._solve(problem, x)

    def _solve(self, problem: Problem, x: State) -> list[State]:
        key = self._key(problem, x) if self._captures(problem, x) else None
        captured = None if key is None else self._found(key)
        if captured is not None:  # all that is asked below was asked then
            return captured(problem, x)
        if key is not None and _reads_elsewhere(problem, x):
            key = None
        if self._fuses(x) and serves(self.method, problem, x):
            fast = Fused(self.method)
            if key is None:
                return fast.solve(problem, x)
            return self._captured(key, fast, lambda: None, problem, x)
        if not x[0].is_cuda and sum(part.numel() for part in x) < WORTH_COMPILING:
            return self.method.solve(problem, x)
        if problem.interpolates:
            return self.method.solve(problem, x)
        draws = self._random(problem, x)
        if draws and not isinstance(self.method, Backprop):
            return self.method.solve(problem, x)
        field, structure = problem.plan.field, problem.structure
        # One method may serve several fields; torch notices other changes, but not new hooks.
        kind = field, structure, hooks(problem.modules)
        if kind not in self._functions:
            self._functions.setdefault(kind, _compiled(field, structure))
        function = self._functions[kind]
        if function is None:
            return self.method.solve(problem, x)
        put_back = None if kind in self._proven else keep(field)
        try:
            states = self._by_function(None if draws else key, function, problem, x)
        except untraceable() as why:
            if put_back is not None:
                put_back()
            if key is not None:
                self._solves.pop(key, None)
            self._functions[kind] = problem.evaluator = None
            problem.prepare = as_they_are
            problem.evaluations.forward = 0
            warnings.warn(
                f"compile=True: the field can't be compiled and runs as it is ({_reason(why)})",
                stacklevel=6,
            )
            return self.method.solve(problem, x)
        self._proven.add(kind)
        return states

    def _by_function(
        self, key: Key | None, function: Callable[..., Any], problem: Problem, x: State
    ) -> list[State]:
        """The solve by compiled evaluations, captured if there is a key to find it by."""
        if not isinstance(self.method, Backsolve):  # which takes shares of a row's gradient
            problem.prepare = preparation(problem.plan.field, x)
        if key is None:
            problem.evaluator = Evaluator(function, x[0], self._places)
            return self.method.solve(problem, x)
        like, places = x[0].new_empty(0), self._places  # not x, which would be kept alive
        return self._captured(
            key, self.method, partial(Evaluator, function, like, places), problem, x
        )

    def _fuses(self, x: State) -> bool:
        if self.fused is not None:
            return self.fused
        # Triton's products of fp32 are slower than the library's: 145 ms where eager takes 48.
        half = autocast_of(x[0].device) == (True, torch.bfloat16)
        return half and kernels_serve(x[0].new_empty(0))

    def _captures(self, problem: Problem, x: State) -> bool:
        wanted = self.capture and self._unused < MOST_UNUSED and not problem.interpolates
        if not (wanted and x[0].device.type in CAPTURED and torch.is_grad_enabled()):
            return False
        if capturing() or hooks_on_saved_tensors():
            return False
        given = chain(x, problem.conditioning.tensors, problem.plan.field.parameters())
        return any(tensor.requires_grad for tensor in given)

    def _found(self, key: Key) -> Captured | None:
        """The captured solve that was made for this."""
        captured = self._solves.get(key)
        if captured is not None:
            self._unused = 0
            if len(self._solves) > 1:  # the last used is the last to go
                self._solves[key] = self._solves.pop(key)
        return captured

    def _captured(
        self,
        key: Key,
        method: Gradient,
        evaluator: Callable[[], Evaluator | None],
        problem: Problem,
        x: State,
    ) -> list[State]:
        """The first solve of its kind by CUDA graphs."""
        # Graphs of another grid are of no more use, and all hold their memory. Nor are those of
        # other numbers: what is annealed doesn't come back.
        kept = {
            k: c for k, c in self._solves.items() if c.plan is problem.plan and k[:-1] != key[:-1]
        }
        self._solves = dict(list(kept.items())[1 - MOST_KEPT :])
        self._solves[key] = captured = Captured(method, evaluator, problem.plan, problem.prepare)
        self._unused += 1
        if self._unused == MOST_UNUSED:
            self._solves.clear()
            warnings.warn(
                f"compile=True: {MOST_UNUSED} captured solves in a row were never used again: "
                "shapes, weights, settings or conditioning were others in each call. From now on "
                "solves are not captured",
                stacklevel=7,
            )
        return captured(problem, x)

    def _random(self, problem: Problem, x: State) -> bool:
        """Whether the field draws random numbers, by trying it once for all its traits."""
        field = problem.plan.field
        others = str(problem.conditioning.others)
        _, *values = _attributes(problem.modules)
        now = traits(problem.modules), *values, others
        if len(self._draws) > MOST_KEPT:
            self._draws.clear()  # a number that counts calls would fill it
        if now not in self._draws:
            stage = problem.plan.stages.repeated[0]
            given = problem.conditioning.rebuilt(problem.conditioning.tensors)
            put_back = keep(field)  # a module of the user's may move its buffers
            with as_drawn(random_state(x[0].device), x[0].device) as drew, torch.no_grad():
                weights = field.weights_at(stage.time)
                evaluate_checked(field, problem.structure, weights, stage, x, given)
                self._draws[now] = drew()
            put_back()
        return self._draws[now]

    def _key(self, problem: Problem, x: State) -> Key | None:
        """All that a capture is specialised to; None if that can't be said."""
        inputs = [*x, *problem.conditioning.tensors]
        tensors, settings, numbers = _attributes(problem.modules)
        held = [
            t
            for part in problem.modules
            for t in (*part._parameters.values(), *part._buffers.values())
            if t is not None
        ]
        key = (
            id(problem.plan),
            problem.structure,
            problem.conditioning.structure,
            problem.conditioning.others,
            tuple((t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in inputs),
            # Gradients go to these very objects; where they lie a graph has by heart.
            tuple((id(t), t.data_ptr(), t.dtype, t.requires_grad) for t in held),
            # Tensors that are plain attributes may be others in every call.
            tuple(
                (id(t), t.data_ptr(), t.shape, t.stride(), t.dtype, t.requires_grad)
                for t in tensors
            ),
            # Modules stand for themselves: no id of theirs is given a second time.
            tuple(problem.modules),
            hooks(problem.modules),
            settings,
            # Their values at the stages are made on the host, once: a graph can't read them anew.
            tuple(
                buffer._version
                for part in problem.modules
                if isinstance(part, Basis)
                for buffer in part._buffers.values()
                if buffer is not None
            ),
            autocast_of(x[0].device),
            arithmetic(),
            numbers,  # last: see _captured
        )
        try:
            hash(key)
        except TypeError:  # conditioning that a dict can't find again
            return None
        return key

    def __repr__(self) -> str:
        return f"Compiled({self.method!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Compiled functions and graphs belong to one field on one device: copies start anew.
        return Compiled, (self.method, self.capture, self.fused)


def _attributes(
    modules: Sequence[nn.Module],
) -> tuple[list[Tensor], tuple[bool | str, ...], tuple[Any, ...]]:
    """Plain attributes that modules' code may read: tensors, flags and words, numbers.

    Numbers with their types, since 1 and 1.0 are equal; but for a count of norms' own.
    """
    tensors: list[Tensor] = []
    settings: list[bool | str] = []
    numbers: list[Any] = []
    for part in modules:
        for name, value in part.__dict__.items():
            kind = type(value)
            if kind in _OTHERS:  # most, so first
                continue
            if kind is bool or kind is str:
                settings.append(value)
            elif kind is float or kind is int:
                if name not in ("updates", "reset_at"):
                    numbers += (kind, value)
            elif isinstance(value, Tensor):
                tensors.append(value)
            elif isinstance(value, Number):  # such as numpy's
                numbers += (kind, value)
    return tensors, tuple(settings), tuple(numbers)


def _reads_elsewhere(problem: Problem, x: State) -> bool:
    """Whether a number on the host is read, which a graph would have by heart."""
    parts = problem.modules
    held = (t for part in parts for t in (*part._parameters.values(), *part._buffers.values()))
    read = [*problem.conditioning.tensors, *(t for t in held if t is not None)]
    return any(t.device != x[0].device for t in (*read, *_attributes(parts)[0]))


class Evaluator:
    """The evaluations of a solve through a compiled function."""

    def __init__(
        self, function: Callable[..., Any], like: Tensor, places: dict[Any, Tensor]
    ) -> None:
        self.function, self.device, self.dtype = function, like.device, like.dtype.to_real()
        self.places = places

    def __call__(
        self, weights: Named, stage: Stage, x: State, conditioning: tuple[Any, ...]
    ) -> State:
        """f at a stage."""
        number = self._tensor(stage.index, torch.int64)
        time = self._tensor(stage.time, self.dtype)
        versions = [part._version for part in x] if has_versions(x) else None
        slopes: State = self.function(weights, number, time, x, conditioning, stage.record)
        if versions is not None and [part._version for part in x] != versions:
            raise ValueError(CHANGED)
        return slopes

    def _tensor(self, value: Any, dtype: torch.dtype) -> Tensor:
        key = (value, dtype, self.device)
        if key not in self.places:
            self.places[key] = torch.tensor(value, dtype=dtype, device=self.device)
        return self.places[key]


def _compiled(field: Field, structure: TreeSpec) -> Callable[..., Any]:
    """The field's evaluation, compiled."""

    def evaluate(
        weights: Named,
        number: Tensor,
        time: Tensor,
        x: State,
        conditioning: tuple[Any, ...],
        record: bool,
    ) -> State:
        stage = Stage(number, 0, time, _NOWHERE, "right", record)
        return evaluate_checked(field, structure, weights, stage, x, conditioning, watched=True)

    # A code object of its own: torch counts recompilations per code object, over all fields.
    code = evaluate.__code__.replace(co_name=f"evaluate_{id(field)}")
    own = types.FunctionType(code, globals(), "evaluate", None, evaluate.__closure__)
    compiled: Callable[..., Any] = torch.compile(own, fullgraph=True, dynamic=False)
    turns = turns_of(field)

    def alone(*inputs: Any) -> Any:
        """A call may be traced, which must not see weights that another thread has lent."""
        with taken(turns):
            return compiled(*inputs)

    return alone


def _reason(why: BaseException) -> str:
    """Why torch compiles no more, in a line."""
    if isinstance(why, torch._dynamo.exc.FailOnRecompileLimitHit):
        return (
            "it has been compiled as often as torch._dynamo.config.recompile_limit allows. A "
            "number among the field's inputs costs a compilation for each value: pass a tensor"
        )
    return str(why).strip().splitlines()[0]
