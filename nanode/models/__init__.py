"""Networks with flows in them: the paper's models and its baselines, by name."""

from nanode.models.classifier import Classifier, create
from nanode.models.rows import names

__all__ = ["Classifier", "create", "names"]
