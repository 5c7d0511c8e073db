import torch

import nanode
from nanode import demo


def test_moving_weights_learn_what_constant_ones_cannot():
    # The floor for constant weights is the mean of x² over the 65 points: all sent to 0.
    floor = float(torch.linspace(-1, 1, 65).square().mean())
    still, moving = (
        demo.make_field(nanode.Constant()),
        demo.make_field(nanode.Trigonometric(order=10)),
    )
    demo.fit(still)
    demo.fit(moving)
    assert demo.error(demo.paths(still, demo.STEPS)[1]) > 0.95 * floor
    assert demo.error(demo.paths(moving, demo.STEPS)[1]) < 1e-2
    # Solved finely, order is kept on the line, so the error is back above the floor.
    _, fine = demo.paths(moving, demo.FINE)
    assert bool((fine[-1].diff() >= -1e-6).all())
    assert demo.error(fine) > 0.95 * floor


def test_the_picture_is_written(tmp_path):
    path = tmp_path / "deep" / "crossing.png"
    field = demo.make_field(nanode.Constant())
    demo.draw({"a": (field, 2), "b": (field, 3)}, path)
    assert path.stat().st_size > 1000
