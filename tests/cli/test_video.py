"""Video runs through the command line."""

import json

import pytest
from PIL import Image

SHORT = ("--steps", 2, "--evaluate-every", 2, "--batch-size", 2, "--test-clips", 2, "--no-progress")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run."""
    from nanode.cli import main

    folder = tmp_path_factory.mktemp("runs") / "video"
    tokens = ["train", "video", "--recipe", "moving-mnist-tiny", *map(str, SHORT)]
    assert main([*tokens, "--options.width", "2", "--out", str(folder)]) == 0
    return folder


def test_settings_are_laid_over_the_recipe(run):
    config = json.loads((run / "run.json").read_text(encoding="utf-8"))["config"]
    assert (config["steps"], config["batch_size"]) == (2, 2)
    assert config["options"] == {"width": 2, "g_dim": 16, "z_dim": 4, "rnn_size": 32}
    assert config["optimizer"]["lr"] == 5e-3


def test_a_single_setting_of_the_optimizer(nanode, tmp_path):
    status, out, err = nanode(
        *("train", "video", "--recipe", "moving-mnist-tiny", *SHORT, "--options.width", 2),
        *("--optimizer.lr", "1e-3", "--schedule.name", "cosine", "--out", tmp_path / "run"),
    )
    assert status == 0, err
    config = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["config"]
    assert config["optimizer"] == {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.0}
    assert config["schedule"]["name"] == "cosine"
    assert "test   loss" in out


def test_evaluate(nanode, run, tmp_path):
    tokens = ("evaluate", run, "--sequences", 2, "--samples", 2, "--out", tmp_path / "score.json")
    status, out, _ = nanode(*tokens)
    assert status == 0
    found = json.loads((tmp_path / "score.json").read_text(encoding="utf-8"))
    assert len(found["psnr"]) == 5
    assert f"{sum(found['psnr']) / 5:.2f}" in out
    assert f"MSE {found['openstl_mse']:.2f}" in out


def test_generate(nanode, run, tmp_path):
    status, out, _ = nanode("generate", run, "--sequences", 1, "--samples", 2, "--shown", 1)
    assert (status, out) == (0, f"{run / 'generated.gif'}\n")
    with Image.open(run / "generated.gif") as film:
        assert film.n_frames == 8


def test_what_is_for_images_only_is_said(nanode):
    words = nanode("evaluate", "--help").out.replace("│", "").split()
    assert "validation is of images only" in " ".join(words)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("generate", "RUN", "--out", "film.avi"), ".gif or .mp4, got 'film.avi'"),
        (("generate", "RUN", "--out", "."), r"out must be a .gif or .mp4 file, and . is a folder"),
        (("evaluate", "RUN", "--split", "validation"), "split must be one of train, test"),
        (("evaluate", "RUN", "--norms", "batch", "--length", 2), "above n_past = 3, got 2"),
        (("generate", "nowhere"), "can't read the run record"),
        (("generate", "RUN", "--data", "bair", "--data-root", "elsewhere"), "elsewhere"),
        (("evaluate", "RUN", "--data", "bair", "--data-root", "elsewhere"), "elsewhere"),
    ],
)
def test_bad_input(nanode, run, tokens, message):
    status, _, err = nanode(*(run if token == "RUN" else token for token in tokens))
    assert status == 1
    assert message in err


@pytest.mark.parametrize("command", ["generate", "evaluate", "analyse"])
def test_where_nothing_can_be_written_nothing_is_computed(nanode, run, monkeypatch, command):
    def computed(*arguments, **options):
        raise AssertionError("the model was used")

    for part in ("generate.generate", "evaluate.evaluate_video", "analyse.analyse_run"):
        monkeypatch.setattr(f"nanode.cli.{part}", computed)
    status, _, err = nanode(command, run, "--out", run / "run.json" / "below" / "x.gif")
    assert status == 1
    assert f"{run / 'run.json'} is a file" in err


def test_a_folder_is_no_file_for_numbers(nanode, run, monkeypatch, tmp_path):
    monkeypatch.setattr("nanode.cli.evaluate.evaluate_video", None)  # nothing is computed
    status, _, err = nanode("evaluate", run, "--out", tmp_path)
    assert status == 1
    assert f"out must be a JSON file, and {tmp_path} is a folder" in err


def test_an_image_run_is_no_video_run(nanode, run, quick, tmp_path):
    image = ("train", "image", "--config", quick, "--out")
    assert nanode(*image, tmp_path / "image").status == 0
    of_an_image = f"{tmp_path / 'image' / 'run.json'} is the record of an image run, not of a video"
    video = ("train", "video", "--data", "moving-digits", "--steps", 1, "--out", tmp_path / "image")
    for tokens in (("generate", tmp_path / "image"), video):
        status, _, err = nanode(*tokens)
        assert status == 1
        assert of_an_image in err
    status, _, err = nanode(*image, run)
    assert status == 1
    assert f"{run / 'run.json'} is the record of a video run, not of an image run" in err


def test_a_recipe_of_images(nanode, tmp_path):
    status, _, err = nanode("train", "video", "--recipe", "digits-tiny", "--out", tmp_path / "r")
    assert (status, err) == (1, "nanode: 'digits-tiny' is a recipe of `nanode train image`\n")


def test_a_model_that_does_not_exist(nanode, tmp_path):
    tokens = (
        "--data",
        "moving-mnist",
        "--steps",
        1,
        "--model",
        "svg-nano",
        "--out",
        tmp_path / "r",
    )
    status, _, err = nanode("train", "video", *tokens)
    assert status == 1
    assert "Did you mean 'svg-nanode'?" in err
    assert list(tmp_path.iterdir()) == []
