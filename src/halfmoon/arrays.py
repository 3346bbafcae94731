"""numpy, where it is installed: loaded when keys are indexed, since it would take every start 60 ms. Holds that one name."""

from __future__ import annotations

from typing import Any

np: Any = None
"""The module numpy once `load` was called; None: not yet, or there is none. Whoever finds None does without."""
_looked = False


def load() -> None:
    """Load numpy, once. May be called from another thread."""
    global np, _looked
    if _looked:
        return
    try:
        import numpy
    except ImportError:
        pass
    else:
        np = numpy
    _looked = True
