import pytest

from nanode.gradients import compiled


@pytest.fixture
def compile_all(monkeypatch):
    """Small states on a CPU are compiled, too."""
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)
