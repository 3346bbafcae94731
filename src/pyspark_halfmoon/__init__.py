"""What Spark finds by itself: PySpark imports every module called ``pyspark_…`` and registers its `DefaultSource`.

So ``spark.read.format("halfmoon")`` works where Halfmoon is installed, with no registration in the user's program. A module that
cannot be imported would take all other Python sources from Spark: where something is missing, the source says so when it is used.
"""

from pyspark.sql.datasource import DataSource

try:
    from halfmoon.spark.source.source import HalfmoonSource as DefaultSource
except Exception as exc:  # whatever it was: it is raised when somebody uses this source
    _cause = exc

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Raises ImportError when it is used, with what kept our own source from being imported."""

        def __init__(self, options: dict[str, str]) -> None:
            text = f"the source halfmoon cannot be used here: {_cause}. pip install 'halfmoon[spark]' brings what it needs"
            raise ImportError(text) from _cause

        @classmethod
        def name(cls) -> str:
            """Return the short name."""
            return "halfmoon"


__all__ = ["DefaultSource"]
