"""Norms with one set of running statistics, which the evaluations of a solve would mix."""

from torch import nn

from nanode.fields.norms import CONVERTED


def refuse_running_statistics(module: nn.Module) -> None:
    """Refuse norms that keep one set of statistics for all evaluations."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
            raise ValueError(mixing(name or "the module", part))


def mixing(name: str, norm: nn.Module) -> str:
    """Why a norm is refused, and what can stand in its place."""
    return (
        f"{name} is a {type(norm).__name__} with running statistics: in a field it is evaluated "
        "many times a solve, so one set of statistics would mix all times, and recomputation would "
        f"update it twice. {_instead(norm)}."
    )


def _instead(norm: nn.Module) -> str:
    """What can stand in a field for a norm with running statistics."""
    if isinstance(norm, CONVERTED):
        return (
            "Use nanode.BatchNorm (one set per evaluation), nanode.convert_norms(module), "
            "GroupNorm or LayerNorm, or pass track_running_stats=False"
        )
    if isinstance(norm, nn.SyncBatchNorm):
        return (
            "Pass track_running_stats=False, or use GroupNorm, LayerNorm or nanode.BatchNorm (one "
            "set per evaluation, of each process's own batch) in its place: "
            "nanode.convert_norms(module) leaves a SyncBatchNorm as it is"
        )
    return (
        "Pass track_running_stats=False, or use GroupNorm or LayerNorm in its place: "
        f"nanode.convert_norms(module) leaves {type(norm).__name__} as it is"
    )
