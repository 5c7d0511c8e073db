"""``nanode recipes``: the configurations that come with the package."""

from importlib import resources

from nanode.training.documents import recipe_names
from nanode.values import check_choice

#: Which command takes them, and the package they come with.
KINDS = {"image": "nanode.training", "video": "nanode.training.video"}


def command(name: str | None = None, /) -> None:
    """List the recipes, or print one as YAML, to change and use by ``--config``.

    Parameters
    ----------
    name
        The recipe to print.
    """
    known = {recipe: kind for kind, package in KINDS.items() for recipe in recipe_names(package)}
    if name is None:
        for recipe, kind in known.items():
            print(f"{kind}  {recipe}")
        return
    check_choice("the recipe", name, known)
    entry = resources.files(KINDS[known[name]]).joinpath("recipes", f"{name}.yaml")
    print(entry.read_text(encoding="utf-8"), end="")
