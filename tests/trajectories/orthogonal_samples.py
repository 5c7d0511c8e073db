"""Orthogonal trajectories to try, for the tests in this folder."""

from functools import partial

import numpy as np
import torch

import nanode

FORMS = [nanode.Householder(), nanode.Exponential(), nanode.Cayley()]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def values():
    """A square matrix, a tall and a wide one, kernels that are wide and tall as matrices."""
    return {
        "a.weight": torch.randn(4, 4),
        "a.tall": torch.randn(6, 3),
        "a.wide": torch.randn(2, 5),
        "b.kernel": torch.randn(3, 2, 3, 3),
        "b.line": torch.randn(8, 2, 3),
    }


def path(form, basis=None, given=None, start=None):
    basis = basis or nanode.Trigonometric(2)
    return nanode.Orthogonal(
        given or values(), partial(nanode.Expansion, basis=basis, start=start), form
    )


def gap(w):
    """‖WᵀW − I‖ or ‖WWᵀ − I‖, Frobenius, of a weight as the matrix out × rest."""
    w = w.detach().double().flatten(1).numpy()
    gram = w.T @ w if len(w) >= w.shape[1] else w @ w.T
    return np.linalg.norm(gram - np.eye(len(gram)))


def polar(w):
    u, _, vh = np.linalg.svd(w.flatten(1).numpy(), full_matrices=False)
    return torch.from_numpy(u @ vh).view(w.shape)
