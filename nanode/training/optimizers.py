"""Optimizers by name, with weight decay where it belongs."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nanode.training.config import OptimizerConfig
from nanode.training.decay import decayed_names

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer of a configuration, with two groups: what decays, and the rest.

    >>> optimizer = make_optimizer(nn.Linear(3, 3), OptimizerConfig(weight_decay=0.1))
    >>> [(group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
    [(0.1, 1), (0.0, 1)]
    """
    decayed = decayed_names(model)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError(f"{type(model).__name__} has no parameters to train")
    groups: list[dict[str, Any]] = [
        {
            "params": [p for name, p in named.items() if (name in decayed) is decays],
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    groups = [group for group in groups if group["params"]]
    # One kernel for all weights where there is one.
    fused = all(p.is_cuda for p in named.values())
    if config.name == "sgd":
        return torch.optim.SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            fused=fused or None,
        )
    assert config.name == "adamw"
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=fused or None)


def take_step(
    fabric: "Fabric",
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: torch.Tensor,
    clip: float | None,
) -> None:
    """One step down the loss, whose gradient's norm is clipped if that is wanted."""
    fabric.backward(loss)
    if clip is not None:
        fabric.clip_gradients(model, optimizer, max_norm=clip, error_if_nonfinite=False)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Take the next step with this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
