"""Parameter names and shapes are pinned: a change to them is a change to everybody's checkpoints.

``python -m tests.models.video.test_golden`` writes ``golden.json`` anew.
"""

import json
from pathlib import Path

import pytest

from nanode.models.video import NAMES, create

GOLDEN = Path(__file__).with_name("golden.json")


def shapes(name):
    model = create(name, width=2, size=16, g_dim=6, z_dim=3, rnn_size=5)
    return {key: list(value.shape) for key, value in model.state_dict().items()}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(name):
    assert shapes(name) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


if __name__ == "__main__":
    models = [f'"{name}": {json.dumps(shapes(name))}' for name in NAMES]
    GOLDEN.write_text("{\n" + ",\n".join(models) + "\n}\n")
