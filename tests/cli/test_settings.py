"""Options of the command line over a recipe or a file."""

from pathlib import Path
from typing import Annotated

import pytest
from cyclopts import App, Parameter

from nanode.cli.settings import settings_over_a_base
from nanode.training import TrainConfig, recipe
from nanode.training.documents import read_value

app = App(result_action="return_value", exit_on_error=False, print_error=False)


@app.command(config=settings_over_a_base(TrainConfig, "nanode.training", "digits-tiny"))
def show(
    *,
    recipe: str | None = None,
    config: Path | None = None,
    settings: Annotated[TrainConfig, Parameter(name="*")],
):
    return settings


def settled(*tokens):
    return app(["show", *map(str, tokens)])


def test_alone():
    found = settled("--data", "digits", "--model", "auto", "--optimizer.lr", "4e-1", "--no-test")
    assert found.optimizer.lr == 0.4
    assert not found.test
    assert found.epochs == TrainConfig(data="digits", model="auto").epochs


def test_a_recipe_as_it_is():
    assert settled("--recipe", "staged") == recipe("staged")


def test_over_a_recipe():
    found = settled("--recipe", "staged", "--options.solver", "heun", "--augment.no-flip")
    base = recipe("staged")
    assert found.options == base.options | {"solver": "heun"}
    assert (base.augment.flip, found.augment.flip) == (True, False)
    assert found.augment.cutout == base.augment.cutout == 16
    assert found.optimizer == base.optimizer


def test_over_a_file(quick):
    found = settled("--config", quick, "--seed", 3, "--options.steps", 4)
    assert (found.seed, found.epochs, found.options) == (3, 1, {"steps": 4})


def test_a_value_can_be_taken_away(quick):
    assert settled("--config", quick).average == 0.9
    assert settled("--config", quick, "--average", "null").average is None


@pytest.mark.parametrize(
    "text", ["2024", "1e3", "true", "2024-01-01", "2024-02-30", "[a]", "a: b", "'a'"]
)
def test_text_is_what_was_typed(quick, text):
    assert settled("--config", quick, "--data-root", text).data_root == text
    assert settled("--config", quick, "--data", text).data == text


def test_text_can_be_taken_away(quick):
    quick.write_text(quick.read_text(encoding="utf-8") + "data_root: there\n")
    assert settled("--config", quick).data_root == "there"
    assert settled("--config", quick, "--data-root", "null").data_root is None


def test_underscores_and_hyphens(quick):
    assert settled("--config", quick, "--batch_size", 7).batch_size == 7
    assert settled("--config", quick, "--batch-size", 7).batch_size == 7


def test_hyphens_in_options_of_the_model(quick):
    found = settled("--config", quick, "--options.moving-norms", "false", "--options.steps", 4)
    assert found.options == {"steps": 4, "moving_norms": False}


def test_pairs(quick):
    adam = ("--optimizer.name", "adamw", "--optimizer.betas", 0.8, 0.9)
    assert settled("--config", quick, *adam).optimizer.betas == (0.8, 0.9)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("--epochs", "1.5"), r"^the command line: epochs must be a whole number, got 1.5"),
        (("--epochs", "ten"), "the command line: epochs must be a whole number, got 'ten'"),
        (("--optimizer.lr", "-1"), "optimizer.lr must be a finite number above 0, got -1.0"),
        (("--optimizer.name", "sdg"), "got 'sdg'. Did you mean 'sgd'"),
        (("--optimizer.name", "adamw", "--optimizer.momentum", "0.5"), "does nothing with"),
        (("--options.steps.x", "3"), r"^options\.steps is 2, it can't have options\.steps\.x$"),
        (("--recipe", "table1"), "--recipe and --config exclude each other"),
    ],
)
def test_refuses(quick, tokens, message):
    with pytest.raises(ValueError, match=message):
        settled("--config", quick, *tokens)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("--model", "auto"), "--data is needed, or a --recipe .*: digits-tiny takes seconds"),
        (("--recipe", "tabel1"), "Did you mean 'table1'"),
        (("--recipe", "moving-mnist-tiny"), "^'moving-mnist-tiny' is a recipe of `nanode train v"),
        (("--config", "nowhere.yaml"), r"can't read the configuration nowhere\.yaml"),
    ],
)
def test_refuses_a_base(tokens, message):
    with pytest.raises(ValueError, match=message):
        settled(*tokens)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1e-3", 1e-3), ("-2", -2), (".5e1", 5.0), ("1.e2", 100.0), ("{a: 1e-3}", {"a": 1e-3})],
        *[("false", False), ("~", None), ("[1, 2]", [1, 2]), ("", None), ("a: b: c", "a: b: c")],
        ("2024-02-30", "2024-02-30"),  # no day, so no date
        *[("010", "010"), ("1:30", "1:30"), ("1:30.5", "1:30.5")],  # no numbers
    ],
)
def test_values_are_read_as_in_yaml(text, value):
    assert read_value(text) == value
