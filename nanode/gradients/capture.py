"""CUDA graphs of a whole solve, forward and backward: one launch each, no Python in between."""

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nanode.fields.swap import with_parameters
from nanode.gradients.gradient import Gradient
from nanode.gradients.once import once
from nanode.gradients.problem import (
    Conditioning,
    Evaluations,
    Plan,
    Prepare,
    Problem,
    own_parameters,
)
from nanode.gradients.pullback import ends_of
from nanode.gradients.snapshot import buffers, keep
from nanode.solvers.stepper import State

#: One capture at a time: some settings are the whole process's.
_CAPTURES = threading.RLock()
_HERE = threading.local()


def capturing() -> bool:
    """Whether this thread is trying or making a capture; what is inside is part of it."""
    return getattr(_HERE, "capturing", False)


@contextmanager
def _capturing() -> Iterator[None]:
    with _CAPTURES:
        _HERE.capturing = True
        try:
            yield
        finally:
            _HERE.capturing = False


def hooks_on_saved_tensors() -> bool:
    """Whether someone else keeps what autograd saves, as ``torch.utils.checkpoint`` does.

    A capture saves nothing that they could keep, and what they keep they may make anew by a call.
    """
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


class Captured:
    """Solves of one shape as two CUDA graphs, made at the first call.

    Inputs are copied into the graphs' own memory and results copied out, so that nobody holds
    memory that the next replay overwrites; parameters are read where they are. While the backward
    pass of an earlier call is still to come, in this thread or another, its states must not be
    touched: such a call runs the solve itself, as does every call if something in the field can't
    be captured. Threads take turns at forward passes (``Compiled``).
    """

    def __init__(
        self, method: Gradient, evaluator: Callable[[], Any], plan: Plan, prepare: Prepare
    ) -> None:
        self.method, self.evaluator, self.prepare = method, evaluator, prepare
        #: Kept, so that its id, by which this is found, can't be given to another.
        self.plan = plan
        self.graphs: Graphs | None = None
        self.refusal: str | None = None
        self.waiting: Callable[[], Any] = lambda: None

    def __call__(self, problem: Problem, x: State) -> list[State]:
        """The states at the wanted grid points."""
        problem.evaluator, problem.prepare = self.evaluator(), self.prepare
        if self.graphs is None and self.refusal is None:
            with _capturing():
                self._capture(problem, x)
        if self.graphs is None or self.waiting() is not None:
            return self.method.solve(problem, x)
        token = Token()
        self.waiting = weakref.ref(token)
        problem.evaluations.forward += self.graphs.evaluations.forward
        inputs = (*x, *problem.conditioning.tensors, *self.graphs.parameters)
        flat = _Replayed.apply(self.graphs, token, problem.evaluations, *inputs)
        n = len(x)
        return [tuple(flat[i : i + n]) for i in range(0, len(flat), n)]

    def _capture(self, problem: Problem, x: State) -> None:
        """Capture, or say why not."""
        stream, put_back = torch.cuda.current_stream(), keep(problem.plan.field)
        before = sys.exc_info()[1]
        try:
            self.graphs = Graphs(self.method, problem, self.evaluator, x)
        except RuntimeError as why:
            # Nothing here may go on naming the error, whose traceback holds what was captured.
            self.refusal = _words(_first(why, before))
            _recover(stream)
            reason = self.refusal.splitlines()[0]
            warnings.warn(
                f"compile=True: the solve can't be captured and runs as it is ({reason})",
                stacklevel=9,
            )
        finally:
            torch.cuda.synchronize()  # a capture that failed leaves work behind
            put_back()  # trials move statistics, and only passes may


class Token:
    """Lives as long as a backward pass may still come."""


class Graphs:
    """The two graphs, their memory, and what they count."""

    def __init__(
        self, method: Gradient, problem: Problem, evaluator: Callable[[], Any], x: State
    ) -> None:
        field, plan, structure = problem.plan.field, problem.plan, problem.structure
        named = own_parameters(field)
        self.parameters = [p for p in named.values() if p.requires_grad]
        self.x = [_static(part) for part in x]
        self.conditioning = [_static(part) for part in problem.conditioning.tensors]
        self.evaluations = Evaluations()
        self.inputs = [*self.x, *self.conditioning, *self.parameters]
        #: Which get gradients: what is frozen later has its own in the graph all the same.
        self.differentiated = [tensor.requires_grad for tensor in self.inputs]
        #: Where the graphs ran last.
        self.stream = torch.cuda.current_stream()
        #: What both graphs read where it is, and so must not change in between.
        self.read = [*named.values(), *(b for b, _ in buffers(field).values())]

        def solve() -> tuple[list[Tensor], list[Tensor]]:
            """The outputs, and the leaves that they are made from."""
            self.evaluations.forward = self.evaluations.backward = 0
            leaves = [_alias(tensor) for tensor in self.inputs]
            supply = iter(leaves)
            at = tuple(next(supply) for _ in self.x)
            given = problem.conditioning.rebuilt([next(supply) for _ in self.conditioning])
            lent = {name: next(supply) for name, p in named.items() if p.requires_grad}
            own = Problem(
                plan,
                structure,
                Conditioning(given),
                self.evaluations,
                evaluator(),
                owned=True,
                prepare=problem.prepare,
            )
            states = with_parameters(field, lent, method.solve, own, at)
            return [part for state in states for part in state], [
                leaf for leaf in leaves if leaf.requires_grad
            ]

        def pull(outputs: list[Tensor], leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
            # Captured inside the caller's autocast, where a backward pass has no business. In this
            # thread, which alone is known to be capturing.
            with (
                torch.autocast("cuda", enabled=False),
                torch.autograd.set_multithreading_enabled(False),
            ):
                return torch.autograd.grad(outputs, leaves, self.grads_out, allow_unused=True)

        with _thorough():
            self._capture(solve, pull)

    def follow(self) -> None:
        """Before a replay: if the last one was on another stream, after all that is done there."""
        now = torch.cuda.current_stream()
        if now != self.stream:
            now.wait_stream(self.stream)
            self.stream = now
            for tensor in (*self.x, *self.conditioning, *self.grads_out):
                tensor.record_stream(now)

    def versions(self) -> list[int]:
        """How often what the graphs read has been changed."""
        return [tensor._version for tensor in self.read]

    def _capture(
        self,
        solve: Callable[[], tuple[list[Tensor], list[Tensor]]],
        pull: Callable[[list[Tensor], list[Tensor]], tuple[Tensor | None, ...]],
    ) -> None:
        # Whatever is made at first use (compiled code, handles, tables) must not be captured.
        side, own = _streams(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                outputs, leaves = solve()
                _refuse_others(outputs, leaves)
                self.grads_out = [torch.randn_like(part) for part in outputs]
                pull(outputs, leaves)
            del outputs, leaves
        torch.cuda.current_stream().wait_stream(side)
        pool = torch.cuda.graph_pool_handle()
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with _recording(self.forward, pool, own):
            outputs, leaves = solve()
        with _recording(self.backward, pool, own):
            self.grads_in = pull(outputs, leaves)
        _capture_nothing(own)
        self.outputs = [part.detach() for part in outputs]


@cache
def _streams(device: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Where captures are tried, and where they are made.

    The same for all captures of a device, since libraries keep workspaces for every stream.
    """
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


def _refuse_others(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Raise if the outputs depend on a leaf that isn't among these, and would get no gradient.

    Such as what a function closes over, or a parameter to which a module keeps a second reference.
    """
    known = {id(leaf) for leaf in leaves}
    if any(id(leaf) not in known for leaf in ends_of(outputs)):
        raise RuntimeError(
            "the field's value depends on a tensor that requires grad and is neither x, "
            "conditioning, nor read as a parameter of the field"
        )


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture into a pool; if that fails the pool's memory is given back.

    torch before 2.14 keeps it, and empties no cache any more, believing that the capture goes on
    (its pull requests 180395 and 190348).
    """
    # Other threads may use the GPU meanwhile, but for drawing random numbers on it.
    recording = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    try:
        with recording:
            yield
    except RuntimeError:
        if torch.__version__ < "2.14" and not _ended(graph):
            device = torch.cuda.current_device()
            for give_back in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
                with suppress(RuntimeError):  # the first may have been done
                    give_back(device, pool)
        raise


def _ended(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether its capture came to an end, so that it gives its pool back itself when it dies.

    As after an error that no CUDA call has to do with: the graph then holds what came before.
    """
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


def _first(why: BaseException, before: BaseException | None) -> BaseException:
    """What failed first: the end of a capture only says that something had.

    Not what the caller was already handling ``before``.
    """
    cause = why.__context__
    return why if cause is None or cause is before else _first(cause, before)


def _words(error: BaseException) -> str:
    return str(error).strip() or repr(error)


def _recover(stream: torch.cuda.Stream) -> None:
    """After a capture that failed torch is left on its stream, its generator drawing for a graph.

    Only the end of a capture that succeeds sets the generator free.
    """
    torch.cuda.set_stream(stream)
    torch.cuda.synchronize()
    with suppress(RuntimeError):
        _capture_nothing(_streams(torch.cuda.current_device())[1])


def _capture_nothing(stream: torch.cuda.Stream) -> None:
    """Capture next to nothing on a stream, and drop it: what torch tidies then is tidied.

    Note *workspaces*: torch keeps cuBLAS's for every stream, those that it took in a capture in
    that graph's pool, and 2.13 drops a stream's when any graph captured there dies, while others
    go on writing into them (its issue 193402). So captures share none: this graph's death drops
    what the last ones have taken, whose memory stays in their own pool and is theirs alone.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        torch.zeros((), device=stream.device)


@contextmanager
def _thorough() -> Iterator[None]:
    """Let cuDNN try its algorithms: what is captured once is replayed many times.

    Not where results must be the same in every process: the fastest may be another there.
    """
    before, fixed = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    fixed |= torch.are_deterministic_algorithms_enabled()
    torch.backends.cudnn.benchmark = before or not fixed
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, graphs: Graphs, token: Token, evaluations: Evaluations, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        own = [*graphs.x, *graphs.conditioning]
        graphs.follow()
        for static, given in zip(own, inputs, strict=False):
            static.data.copy_(given)
        graphs.forward.replay()
        # Only now, with the GPU at work.
        ctx.graphs, ctx.token, ctx.evaluations = graphs, token, evaluations
        ctx.versions = graphs.versions()
        return tuple(part.clone() for part in graphs.outputs)

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        graphs: Graphs = ctx.graphs
        if ctx.token is None:
            raise RuntimeError(
                "a second backward pass through a captured solve, whose memory may have been "
                "reused since the first; use compile=False with retain_graph=True"
            )
        if ctx.versions != graphs.versions():
            raise RuntimeError(
                "a weight or buffer of the field was modified by an inplace operation after the "
                "forward pass of a captured solve, which reads them again; call backward() first"
            )
        graphs.follow()
        for static, given in zip(graphs.grads_out, grads, strict=True):
            static.copy_(given)
        graphs.backward.replay()
        ctx.evaluations.backward += graphs.evaluations.backward
        found = _cloned(graphs)
        ctx.token = None  # from here on another call may replay
        return (None, None, None, *found)


def _cloned(graphs: Graphs) -> Sequence[Tensor | None]:
    """The gradients of all inputs, out of the graphs' memory."""
    found = [grad for grad in graphs.grads_in if grad is not None]
    copies = [torch.empty_like(grad) for grad in found]
    torch._foreach_copy_(copies, found)  # one launch for all of one dtype
    own = iter(copies)
    supply = iter(None if grad is None else next(own) for grad in graphs.grads_in)
    return [next(supply) if wanted else None for wanted in graphs.differentiated]


def _alias(tensor: Tensor) -> Tensor:
    """A leaf of its own on the same memory.

    Autograd ties a leaf to the stream that it was first used on, for as long as any graph with it
    lives (DDP keeps one for good): a leaf used before would lead out of a capture, and ruin it.
    """
    alias = tensor.detach().requires_grad_(tensor.requires_grad)
    # What is compiled for a parameter would be compiled again for a tensor.
    return nn.Parameter(alias) if isinstance(tensor, nn.Parameter) else alias


def _static(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
