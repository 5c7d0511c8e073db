"""python -m nanode.demo [digits | crossing]

digits: train four models on small digits and compare them (the default)
crossing: learn x ↦ −x on a line, by constant weights and by moving ones
"""

import sys
from collections.abc import Sequence

from nanode.demo import crossing, digits
from nanode.interrupts import print_anything
from nanode.values import check_choice

DEMOS = {"digits": digits.main, "crossing": crossing.main}


def main(arguments: Sequence[str]) -> None:
    """Show a demo, by default the digits."""
    print_anything()
    name = arguments[0] if arguments else "digits"
    if name in ("-h", "--help"):
        print(__doc__, end="")
        return
    check_choice("the demo", name, DEMOS)
    DEMOS[name]()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, ImportError) as why:
        sys.exit(str(why))
