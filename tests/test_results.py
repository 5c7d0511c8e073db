"""What results/ shows is what its records say: every page can be made again from them."""

from pathlib import Path

import pytest

from nanode.experiments import EXPERIMENTS, Options

RESULTS = Path(__file__).parent.parent / "results"
#: By experiment, the options of the runs that its page shows.
PAGES = {
    "figure-order-test": Options(),
    "figure-orthogonal": Options(budget="full"),
    "figure-video": Options(seeds=2),
    "memory": Options(),
    "staged": Options(),
    "table1": Options(),
    "table2": Options(seeds=2),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_made_from_records(name, tmp_path):
    EXPERIMENTS[name].report(RESULTS / "runs", tmp_path, PAGES[name])
    page = f"{name}.md"
    assert (tmp_path / page).read_text() == (RESULTS / page).read_text()


def test_every_page_is_among_them():
    pages = {path.stem for path in RESULTS.glob("*.md")} - {"README"}
    assert pages == set(PAGES)
    listed = (RESULTS / "README.md").read_text()
    assert all(f"({name}.md)" in listed for name in PAGES)
