"""``python -m nanode`` is the command ``nanode``."""

import sys

from nanode.cli import main

if __name__ == "__main__":
    sys.exit(main())
