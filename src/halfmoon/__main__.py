"""``python -m halfmoon``: the command ``halfmoon``."""

import sys

from halfmoon.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
