"""Training runs: configuration, loop, checkpoints, records.

>>> from dataclasses import replace
>>> from nanode.training import recipe, train
>>> config = replace(recipe("table1-tiny"), epochs=1)
>>> train(config, "runs/example")  # doctest: +SKIP
"""

from nanode.training.analysis import analyse_run
from nanode.training.calibration import calibrate
from nanode.training.config import (
    AugmentConfig,
    OptimizerConfig,
    PenaltyConfig,
    ScheduleConfig,
    TrainConfig,
)
from nanode.training.documents import load_config, recipe, recipe_names, save_config
from nanode.training.evaluation import Score
from nanode.training.loop import Diverged
from nanode.training.records import Costs, Epoch, Flow, Metrics, RunRecord, Times
from nanode.training.run import evaluate, load_model, train

__all__ = [
    "AugmentConfig",
    "Costs",
    "Diverged",
    "Epoch",
    "Flow",
    "Metrics",
    "OptimizerConfig",
    "PenaltyConfig",
    "RunRecord",
    "ScheduleConfig",
    "Score",
    "Times",
    "TrainConfig",
    "analyse_run",
    "calibrate",
    "evaluate",
    "load_config",
    "load_model",
    "recipe",
    "recipe_names",
    "save_config",
    "train",
]
