"""``python -m nanode.demo [digits | crossing]``."""

import sys
from collections.abc import Sequence

from nanode.demo import crossing, digits
from nanode.values import check_choice

DEMOS = {"digits": digits.main, "crossing": crossing.main}


def main(arguments: Sequence[str]) -> None:
    """Show a demo, by default the digits."""
    name = arguments[0] if arguments else "digits"
    check_choice("the demo", name, DEMOS)
    DEMOS[name]()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, ImportError) as why:
        sys.exit(str(why))
