"""Video runs: training, evaluation, generation.

>>> from nanode.training.video import train_video, video_recipe
>>> train_video(video_recipe("moving-mnist-tiny"), "runs/video")  # doctest: +SKIP
"""

from nanode.training.video.config import (
    AdamConfig,
    VideoConfig,
    VideoScheduleConfig,
    load_video_config,
    video_recipe,
    video_recipe_names,
)
from nanode.training.video.evaluation import (
    TrivialScore,
    VideoScore,
    evaluate_video,
    trivial_scores,
)
from nanode.training.video.generation import generate
from nanode.training.video.loss import Elbo
from nanode.training.video.records import (
    Best,
    Point,
    VideoCosts,
    VideoMetrics,
    VideoRecord,
    is_video_run,
)
from nanode.training.video.run import load_video_model, train_video

__all__ = [
    "AdamConfig",
    "Best",
    "Elbo",
    "Point",
    "TrivialScore",
    "VideoConfig",
    "VideoCosts",
    "VideoMetrics",
    "VideoRecord",
    "VideoScheduleConfig",
    "VideoScore",
    "evaluate_video",
    "generate",
    "is_video_run",
    "load_video_config",
    "load_video_model",
    "train_video",
    "trivial_scores",
    "video_recipe",
    "video_recipe_names",
]
