"""Names of models, data sets and recipes."""

import urllib.error

import pytest

from nanode.data import SOURCES, video
from nanode.models import names
from nanode.training import TrainConfig, recipe, recipe_names
from nanode.training.documents import parse_document


def test_models(nanode):
    status, out, _ = nanode("models")
    assert status == 0
    assert out.splitlines()[: len(names())] == names()
    assert "--preset: paper, staged" in out
    assert "coupled-euler" in out
    assert "reversal" in out


def test_recipes(nanode):
    status, out, _ = nanode("recipes")
    assert status == 0
    assert {f"image  {name}" for name in recipe_names()} <= set(out.splitlines())


def test_a_recipe_can_be_used_as_a_file(nanode):
    status, out, _ = nanode("recipes", "staged")
    assert status == 0
    assert parse_document(TrainConfig, out, "what was printed") == recipe("staged")


def test_an_unknown_recipe(nanode):
    status, _, err = nanode("recipes", "stage")
    assert status == 1
    assert "Did you mean 'staged'?" in err


# ---- data


def test_data(nanode, monkeypatch, tmp_path):
    monkeypatch.setenv("NANODE_DATA", str(tmp_path / "mine"))
    status, out, _ = nanode("data")
    assert status == 0
    assert out.splitlines()[: len(SOURCES)] == list(SOURCES)
    assert str(tmp_path / "mine") in out
    assert f"Video: {', '.join(video.SOURCES)}" in out


def test_fetching_what_is_there(nanode):
    expected = "digits: 1,437 images of 1×8×8 to train, 360 to test\n"
    assert nanode("data", "fetch", "digits") == (0, expected, "")
    status, out, _ = nanode("data", "fetch", "moving-digits")
    assert status == 0
    assert "60,000 of any number of frames of 1×64×64" in out


def test_fetching_an_unknown_name(nanode):
    status, _, err = nanode("data", "fetch", "cifr10")
    assert status == 1
    assert "Did you mean 'cifar10'?" in err
    status, _, err = nanode("data", "fetch", "moving-digit")
    assert status == 1
    assert "Did you mean 'moving-digits'?" in err


@pytest.mark.parametrize("option", ["--data-root", "--root"])
def test_fetching_without_a_network(nanode, monkeypatch, tmp_path, option):
    def unreachable(*arguments, **options):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    monkeypatch.setattr("nanode.data.download.PAUSE", 0.0)
    status, out, err = nanode("data", "fetch", "cifar10", option, tmp_path)
    assert (status, out) == (1, "")
    assert "cifar-10-binary.tar.gz is not in" in err
    assert "Name or service not known" in err
    assert f"put it at {tmp_path / 'cifar-10-binary.tar.gz'}" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [0, 1])
def test_progress_is_shown_on_terminals_alone(nanode, monkeypatch, capsys, there):
    from nanode.data.source import show_progress

    monkeypatch.setattr("sys.stderr.isatty", lambda: bool(there))
    show_progress("a.tar.gz", 1_500_000, 3_000_000)
    assert capsys.readouterr().err == ("\ra.tar.gz   50% of 3.0 MB" if there else "")
