"""Cheaper garbage collections in Spark's Python workers, which run one after each task.

``pyspark.daemon`` has a worker collect all garbage whenever it has done something, and that visits every object that there is: with
PySpark, numpy and pyarrow imported some 25 ms of processor, several times a trigger. What was imported stays for as long as the
process, so once it is there it is moved out of the collector's sight.
"""

from __future__ import annotations

import gc
import sys
from itertools import count

from halfmoon.spark.daemon import MODULE

DAEMONS = ("pyspark.daemon", MODULE)

_calls = count()


def freeze_imports() -> None:
    """Leave all objects so far out of later collections, at the second task of a worker. Called by every task.

    The first task imports the most. Outside of Spark's workers this does nothing.
    """
    if next(_calls) == 1 and in_worker():
        gc.collect()
        gc.freeze()


def in_worker() -> bool:
    """Return whether this process was forked by the daemon of Spark's Python workers."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name in DAEMONS
