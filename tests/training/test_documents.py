"""Configurations as YAML, and every one that is shipped."""

from dataclasses import replace

import pytest

from nanode.training import TrainConfig, load_config, recipe, recipe_names, save_config, train
from nanode.training.documents import parse_document

BASE = "data: digits\nmodel: auto\n"


def parsed(text):
    return parse_document(TrainConfig, text, "my.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", "my.yaml: unknown key 'epoch'. Did you mean 'epochs'"),
        ("lr: 0.1", "my.yaml: unknown key 'lr'. Did you mean 'optimizer.lr'"),
        ("optimizer: {momentun: 0.1}", "unknown key 'optimizer.momentun'.*'optimizer.momentum'"),
        ("qqqq: 1", "unknown key 'qqqq'$"),
        ("1: 1", "unknown key '1'$"),
        ("epochs: ten", r"my.yaml: epochs must be a whole number, got 'ten' \(str\)"),
        ("epochs: 1.5", "epochs must be a whole number, got 1.5"),
        ("epochs: true", "epochs must be a whole number, got True"),
        ("epochs: null", "epochs must be a whole number, got None"),
        ("compile: 1", "compile must be true or false, got 1"),
        ("optimizer: {lr: true}", "optimizer.lr must be a number, got True"),
        ("optimizer: sgd", "my.yaml: optimizer must map keys to values, got 'sgd'"),
        ("optimizer: {lr: -1}", "my.yaml: optimizer.lr must be a finite number above 0"),
        ("optimizer: {name: adamw, betas: 0.9}", "optimizer.betas must be a list, got 0.9"),
        ("options: [1]", r"options must be a mapping, got \[1\]"),
        ("epochs: 1\nepochs: 2", "my.yaml is no YAML: the key 'epochs' is given twice"),
        ("epochs: [", "my.yaml is no YAML"),
        ("seed: 2023-02-30", "my.yaml is no YAML: day is out of range"),
        ("seed: 010", "seed must be a whole number, got '010'"),
        ("epochs: 1:30", "epochs must be a whole number, got '1:30'"),
        ("optimizer: {lr: 1:30.5}", "optimizer.lr must be a number, got '1:30.5'"),
        ("average: 1" + 400 * "0", "my.yaml: average must be a finite number"),
        ("options: {x: " + 5000 * "[" + 5000 * "]" + "}", "my.yaml is no YAML: .* too deeply"),
        ("schedule: {<<: 3}", "my.yaml is no YAML: (?s:.*)expected a mapping or list"),
        ("optimizer: {<<: {lr: 1}, lr: 2, lr: 3}", "the key 'lr' is given twice"),
        ("options: !!python/object:os.system {}", "my.yaml is no YAML"),
    ],
)
def test_errors_name_the_file_and_the_key(text, message):
    with pytest.raises(ValueError, match=message):
        parsed(BASE + text)


@pytest.mark.parametrize("text", ["", "- 1", "just text"])
def test_a_document_must_map(text):
    with pytest.raises(ValueError, match="the document must map keys to values"):
        parsed(text)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="the key 'model' is missing"):
        parsed("data: digits")


@pytest.mark.parametrize(
    ("written", "value"), [("5e-4", 5e-4), ("1", 1.0), ("1.5E+1", 15.0), ("0.25", 0.25)]
)
def test_numbers_as_people_write_them(written, value):
    found = parsed(f"{BASE}optimizer: {{lr: {written}}}").optimizer.lr
    assert found == value
    assert isinstance(found, float)


@pytest.mark.parametrize(
    ("written", "value"), [("0", 0), ("-12", -12), ("+7", 7), ("1_000", 1000), ("0x1F", 31)]
)
def test_whole_numbers_as_people_write_them(written, value):
    assert parsed(f"{BASE}options: {{steps: {written}}}").options == {"steps": value}


def test_mappings_can_be_merged():
    text = "schedule: &one {start: 0.3, end: 0.01}\noptimizer: {lr: 0.2}\noptions:\n"
    found = parsed(f"{BASE}{text}  deep: {{two: &two {{<<: *one, end: 0.5}}}}\n  <<: *two")
    # What is given beside a merge goes before what it brings, also where that is merged again.
    two = {"start": 0.3, "end": 0.5}
    assert found.options == {"deep": {"two": two}, **two}
    assert found.schedule.start == 0.3


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"can't read the configuration .*none\.yaml"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["1e5", "-.5", "1_000", "010", "1:30", "0x10", "yes", "~", "<<"])
def test_texts_that_look_like_something_else_stay_texts(tmp_path, config, text):
    save_config(replace(config, data_root=text), tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").data_root == text


def test_round_trip(tmp_path, config):
    config = replace(config, clip=1e-5, options={"steps": 2, "solver": "heun"})
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


# ---- what is shipped


def test_an_unknown_recipe():
    with pytest.raises(ValueError, match="Did you mean 'table1'"):
        recipe("tabel1")


def test_the_shared_recipe_is_the_one_described():
    config = recipe("table1")
    assert (config.epochs, config.batch_size, config.label_smoothing) == (16, 512, 0.1)
    assert (config.average, config.calibration) == (0.999, 40)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.1, 5e-4)
    assert config.optimizer.nesterov
    staged = recipe("staged")
    assert (staged.epochs, staged.optimizer.lr, staged.augment.cutout) == (150, 0.2, 16)


@pytest.mark.parametrize("name", [name for name in recipe_names() if not name.endswith("-tiny")])
def test_every_recipe_has_a_tiny_variant(name):
    whole, tiny = recipe(name), recipe(f"{name}-tiny")
    assert tiny.optimizer == whole.optimizer
    assert tiny.schedule == whole.schedule
    assert (tiny.average, tiny.label_smoothing) == (whole.average, whole.label_smoothing)
    assert (tiny.augment.cutout > 0) == (whole.augment.cutout > 0)


#: Epochs, and a bound on the last one's loss: of guessing it is ln 10 = 2.303.
LOSSES = {
    "digits-tiny": (2, 1.1),
    "staged-tiny": (3, 1.9),  # 1.64 was found
    "table1-long-tiny": (12, 1.35),  # 1.17 was found
    "table1-tiny": (10, 1.75),  # 1.54 was found
}


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith("-tiny")])
def test_the_loss_of_every_tiny_recipe_falls(name, tmp_path):
    epochs, bound = LOSSES[name]
    record = train(replace(recipe(name), epochs=epochs, progress=False), tmp_path)
    assert record.status == "finished"
    assert record.curves[-1].train_loss < min(record.curves[0].train_loss, bound)
