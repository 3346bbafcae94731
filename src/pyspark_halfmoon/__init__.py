"""What Spark finds by itself: PySpark imports every module called ``pyspark_…`` and registers its `DefaultSource`.

So ``spark.read.format("halfmoon")`` works where Halfmoon is installed, with no registration in the user's program. A module that
cannot be imported would take all other Python sources from Spark: where something is missing, the source says so when it is used.
"""

from pyspark.sql.datasource import DataSource

try:
    from halfmoon.spark.source.source import HalfmoonSource as DefaultSource
except ImportError as exc:
    MISSING = f"the source halfmoon cannot be used here: {exc}. pip install 'halfmoon[spark]' brings what it needs"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Raises ImportError, with what is missing, when it is used."""

        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(MISSING)

        @classmethod
        def name(cls) -> str:
            """Return the short name."""
            return "halfmoon"


__all__ = ["DefaultSource"]
