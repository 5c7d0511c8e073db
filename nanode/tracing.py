"""Being traced by torch's compiler, and what it raises."""

import torch


def traced() -> bool:
    """Whether this very code is being traced, and not run.

    Not ``torch.compiler.is_compiling()``, which is true in every thread while one of them compiles;
    so is ``is_exporting()``, but only the thread that exports has a context for it.
    """
    if torch.compiler.is_dynamo_compiling():
        return True
    return _exporting() and torch._guards.TracingContext.try_get() is not None


def written_out() -> bool:
    """Whether a program is being made of this very code, to be run without it.

    By ``torch.export``, whose programs lose what an autograd node of ours does, or
    ``torch.jit.trace``, which can't look into one.
    """
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined]
    return tracing or (_exporting() and traced())


def _exporting() -> bool:
    """Whether something is being exported, in whatever thread."""
    # The function is true for torch 2.11's compiler wherever it traces, the flag isn't.
    flag: bool | None = getattr(torch.compiler, "_is_exporting_flag", None)
    return torch.compiler.is_exporting() if flag is None else flag


def untraceable() -> tuple[type[Exception], ...]:
    """What is raised for a field that no one graph holds, or for too many shapes of it.

    Not a constant: torch's compiler takes a while to import.
    """
    return torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit
