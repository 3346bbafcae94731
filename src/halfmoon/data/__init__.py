"""Topics as Arrow tables, without Spark and without a JVM: for Polars, DuckDB, pandas, and for Spark's source.

Public names are loaded when first used. Needs pyarrow and numpy, which come with the extra ``halfmoon[arrow]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfmoon.lazy import lazy

if TYPE_CHECKING:
    from halfmoon.data.dataset.topic import TopicDataset
    from halfmoon.data.reading import DataLoss
    from halfmoon.data.scanning import scan, table
    from halfmoon.data.writing import write

_MODULES = {
    "dataset.topic": "TopicDataset",
    "reading": "DataLoss",
    "scanning": "scan table",
    "writing": "write",
}

__all__ = ["DataLoss", "TopicDataset", "scan", "table", "write"]

__getattr__, __dir__ = lazy(__name__, _MODULES, extra="arrow")
