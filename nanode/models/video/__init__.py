"""Stochastic video prediction: SVG-LP, and the same model with flows in its encoder and decoder.

>>> import torch
>>> from nanode.models.video import create
>>> model = create("svg-nanode", width=4, size=16)
>>> model(torch.rand(2, 7, 1, 16, 16), n_past=5).frames.shape
torch.Size([2, 6, 1, 16, 16])
"""

from nanode.models.video.catalogue import NAMES, create
from nanode.models.video.recurrent import Latent
from nanode.models.video.rollout import roll_out
from nanode.models.video.svg import SVG, Prediction

__all__ = ["NAMES", "SVG", "Latent", "Prediction", "create", "roll_out"]
