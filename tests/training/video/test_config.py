from dataclasses import replace

import pytest

from nanode.training.documents import save_config
from nanode.training.video import (
    VideoConfig,
    VideoScheduleConfig,
    load_video_config,
    video_recipe,
    video_recipe_names,
)
from nanode.training.video.setup import make_model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "needs an end: set steps, minutes"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"minutes": -1.0}, "minutes must be a finite number above 0"),
        ({"n_past": 0}, "n_past must be a whole number of at least 1"),
        ({"n_future": 0}, "n_future must be"),
        ({"n_eval": 3}, "n_eval counts the given frames too .* above n_past = 3, got 3"),
        ({"n_eval": "3"}, "n_eval must be a whole number"),
        ({"beta": 0.0}, "beta must be a finite number above 0"),
        ({"options": {"width": {1, 2}}}, "options must map keywords to plain values"),
        ({"data_options": {1: 2}}, "data_options must map"),
        (
            {"steps": None, "minutes": 1.0, "schedule": VideoScheduleConfig(name="one-cycle")},
            "set steps, or take constant",
        ),
        ({"precision": "16"}, "precision must be one of"),
        ({"compile": 1}, "compile must be true or false"),
        ({"data": ""}, "data must be a name"),
    ],
    ids=str,
)
def test_bad_values(config, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(config, **changes)


def test_yaml_round_trip(config, tmp_path):
    config = replace(
        config, schedule=VideoScheduleConfig(name="cosine", warmup=0.1), minutes=2.5, clip=1.0
    )
    save_config(config, tmp_path / "config.yaml")
    assert load_video_config(tmp_path / "config.yaml") == config
    # A part of the schedule leaves the rest as it is by default.
    (tmp_path / "part.yaml").write_text("data: bair\nsteps: 3\nschedule: {end: 0.5}\n")
    assert load_video_config(tmp_path / "part.yaml").schedule.name == "constant"
    (tmp_path / "bad.yaml").write_text("data: bair\nsteps: 3\nn_pasts: 2\n")
    with pytest.raises(ValueError, match=r"bad.yaml: unknown key 'n_pasts'. Did you mean 'n_past'"):
        load_video_config(tmp_path / "bad.yaml")


def test_the_recipes_are_those_of_the_publications():
    mnist, bair = video_recipe("moving-mnist"), video_recipe("bair")
    assert (mnist.n_past, mnist.n_future, mnist.n_eval) == (5, 10, 30)
    assert (bair.n_past, bair.n_future, bair.n_eval) == (2, 10, 30)
    assert [c.options["z_dim"] for c in (mnist, bair)] == [10, 64]
    for config in (mnist, bair):
        assert (config.options["g_dim"], config.options["rnn_size"], config.beta) == (
            128,
            256,
            1e-4,
        )
        assert (config.optimizer.lr, config.optimizer.betas) == (2e-3, (0.9, 0.999))
        assert config.optimizer.weight_decay == 0
        assert (config.batch_size, config.steps) == (100, 300 * 600)
        assert config.schedule.name == "constant"
    other = video_recipe("moving-mnist-deterministic")
    assert (other.n_past, other.n_future, other.n_eval) == (10, 10, 20)


@pytest.mark.parametrize("name", video_recipe_names())
def test_every_recipe_makes_its_model(name):
    config = video_recipe(name)
    assert isinstance(config, VideoConfig)
    if name.endswith("-tiny"):
        channels = 3 if config.data == "bair" else 1
        assert make_model(config, channels, 64).latents == config.options["z_dim"]


def test_there_is_a_tiny_variant_of_each():
    names = video_recipe_names()
    assert names == sorted(
        f"{name}{kind}"
        for name in ("moving-mnist", "moving-mnist-deterministic", "bair")
        for kind in ("", "-tiny")
    )
