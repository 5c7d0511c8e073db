"""The command line: ``nanode train image --data digits --model t-nanode-3 --out runs/first``.

A command is a file of its own here and a line in ``app.COMMANDS``; it is imported when it is used.
"""

import sys
from collections.abc import Sequence


def main(tokens: Sequence[str] | None = None) -> int:
    """Carry out a command (by default the one this program was called with); its exit status."""
    try:
        from nanode.cli.app import run
    except ModuleNotFoundError as why:
        if why.name != "cyclopts":
            raise
        print("nanode: the command line needs cyclopts: pip install nanode[cli]", file=sys.stderr)
        return 1
    return run(sys.argv[1:] if tokens is None else tokens)
