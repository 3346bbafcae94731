"""Run simulated histories of a whole cluster: the same as ``python -m halfmoon.testing``; see there for the options."""

from __future__ import annotations

import sys

from halfmoon.testing.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
