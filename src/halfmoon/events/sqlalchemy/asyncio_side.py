"""The asyncio side of SQLAlchemy, which needs greenlet: looked at only where the process has loaded it.

Without it there is no object of its kinds, so nobody has to import it to tell that a thing is none.
"""

from __future__ import annotations

import sys
from types import ModuleType


def kinds() -> ModuleType | None:
    """Return `sqlalchemy.ext.asyncio`; None where this process has not loaded it."""
    return sys.modules.get("sqlalchemy.ext.asyncio")
