import pytest

from nanode.reports.settings import (
    initialisation,
    norm_affines,
    provenance,
    settings,
    settings_table,
)
from nanode.training import AugmentConfig


def test_what_a_row_says(make):
    found = settings([make(seed=0, speed=15_000.0, share=0.815), make(seed=1, speed=17_000.0)])
    assert found["solver"] == "Euler()"
    assert found["gradient"] == "Backprop()"
    assert found["steps"] == "10"
    assert found["scale"] == "1"
    assert found["parameters"] == "1,490,000"
    assert found["activations of the flow, GB"] == "7.3"
    assert found["parameters of the flow, GB"] == "0.0058"  # 69,632 · 21 · 4 bytes
    assert found["images/s"] == "16,000"  # the mean
    assert found["flow's share of both passes"] == "82%"
    # 25 of the 34 ms that 512 images take.
    assert found["flow's share of a step"] == "73%"
    assert found["commit"] == "012345678"
    assert found["hardware"] == "Some GPU"


def test_runs_that_differ_show_all_values(make):
    found = settings([make(lr=0.1), make(lr=0.4, commit=None), make(lr=0.4, modified=True)])
    assert found["learning rate"] == "0.1 / 0.4"
    assert found["commit"] == "012345678 / unknown / 012345678+"


def test_commits_one_after_the_other(make):
    both = f"{'a' * 40}, then {'b' * 40}"
    assert settings([make(commit=both)])["commit"] == "aaaaaaaaa, then bbbbbbbbb"
    assert settings([make(commit=both, modified=True)])["commit"] == "aaaaaaaaa, then bbbbbbbbb+"


def test_a_plus_is_explained_where_there_is_one(make):
    plain, modified = (("a",), [make()]), (("b",), [make(modified=True)])
    explained = "A + behind a commit: at some start of the run files differed from it."
    assert explained not in settings_table([plain], ["model"])
    assert settings_table([modified], ["model"]).endswith(f"\n\n{explained}")
    assert settings_table([plain, modified], ["model"]).endswith(f"| 012345678+ |\n\n{explained}")


@pytest.mark.parametrize(
    ("model", "field", "options", "start", "affines"),
    [
        ("auto", "Autonomous()", {}, "one draw", "constant"),
        ("con-resnet", "Autonomous()", {}, "one draw", "constant"),
        ("uncon-resnet", "TimeVarying()", {}, "each layer drawn by itself", "move"),
        ("b-nanode-10", "TimeVarying()", {}, "one draw, constant in t", "move"),
        (
            "b-nanode-10",
            "TimeVarying()",
            {"moving_norms": False},
            "one draw, constant in t",
            "constant",
        ),
        (
            "chebyshev-5-independent",
            "TimeVarying()",
            {},
            "each coefficient drawn by itself",
            "move",
        ),
        (
            "auto-orthogonal",
            "TimeVarying(Constant())",
            {},
            "one draw, the orthogonal matrices nearest to it",
            "constant",
        ),
        (
            "uncon-resnet-orthogonal",
            "TimeVarying()",
            {},
            "each layer drawn by itself (of reflections)",
            "move",
        ),
        (
            "chebyshev-5-independent-orthogonal",
            "TimeVarying()",
            {},
            "each coefficient drawn by itself (of reflections)",
            "move",
        ),
        (
            "chebyshev-5-orthogonal",
            "TimeVarying()",
            {},
            "one draw, the orthogonal matrices nearest to it, constant in t",
            "move",
        ),
        ("gated-2", "Gated()", {}, "each field drawn by itself", "constant"),
    ],
)
def test_starts_and_affines(make, model, field, options, start, affines):
    record = make(model=model, field=field, options=options)
    assert initialisation(record) == start
    assert norm_affines(record) == affines


@pytest.mark.parametrize(
    ("data", "held", "words"),
    [
        ("cifar10", 0, "all"),
        ("cifar10", None, "all but 5,000"),
        ("digits", None, "all but a tenth"),
        ("digits", 500, "all but 500"),
    ],
)
def test_training_images(make, data, held, words):
    assert settings([make(data=data, validation=held)])["training images"] == words


def test_where_numbers_come_from(make):
    assert provenance([]) == ""
    found = provenance([make(seed=1), make(seed=0)])
    assert found == (
        "Trained on all but 5,000 images, seed 0, 1, Some GPU, torch 2.11.0, commit 012345678."
    )


def test_augmentation(make):
    some = AugmentConfig(crop=4, flip=True)
    assert settings([make(augment=some)])["augmentation"] == "crop 4, flip"
    assert settings([make(augment=AugmentConfig(cutout=16))])["augmentation"] == "cutout 16"
    assert settings([make()])["augmentation"] == "none"


def test_what_all_rows_share_is_said_once(make):
    rows = {("a",): [make(lr=0.1)], ("b",): [make(lr=0.4)], ("none",): []}
    text = settings_table(rows.items(), ["model"])
    assert "All of these: steps 10; solver Euler();" in text
    assert text.endswith("| model | learning rate |\n|---|--:|\n| a | 0.1 |\n| b | 0.4 |")
    assert settings_table([], ["model"]) == ""
