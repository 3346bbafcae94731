"""Daemon that Spark starts instead of ``pyspark.daemon`` to fork its Python workers: the same with a shorter module path.

Spark puts the archive that holds its Python part before everything else on the path of its workers. Python keeps no compiled form
of what it imports from an archive, so each worker would compile PySpark again, more than half of the processor time of its
start. Where the same PySpark is installed as plain files, they are used. Nothing else is imported here: workers are forks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

MODULE = "halfmoon.spark.daemon"
"""The value of ``spark.python.daemon.module``."""


def without_archives(path: Sequence[str]) -> list[str]:
    """Return a module path without the archives of PySpark and Py4J, unless they are the only ones, or of another PySpark.

    The archive lies within the package that it was made of: ``pyspark/python/lib/pyspark.zip``.
    """
    kept = list(path)
    places = {Path(entry).resolve() for entry in path}  # a virtual environment behind a symbolic link is the same
    for entry in path:
        file = Path(entry)
        if file.name != "pyspark.zip" or len(file.parents) < 4:
            continue
        package, libraries = file.parents[2], file.parent
        if package.name != "pyspark" or not (package / "__init__.py").is_file() or package.parent.resolve() not in places:
            continue
        rest = [other for other in kept if Path(other).parent != libraries]
        if PathFinder.find_spec("py4j", rest) is not None:
            kept = rest
    return kept


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager

    manager()
