"""Topics as tables and tables as topics, in PySpark alone: a source, a sink, a lake pipeline and the jobs on them.

Nothing outside this package imports PySpark or pyarrow; they come with the extra ``halfmoon[spark]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmoon.spark.sessions import register, session
    from halfmoon.spark.sink.target_queues import by_key

_MODULE_OF = {
    "by_key": "halfmoon.spark.sink.target_queues",
    "register": "halfmoon.spark.sessions",
    "session": "halfmoon.spark.sessions",
}

__all__ = ["by_key", "register", "session"]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'halfmoon.spark' has no attribute {name!r}")
    return getattr(import_module(module), name)
