"""What Spark finds by itself: PySpark imports every module called ``pyspark_…`` and registers its `DefaultSource`.

So ``spark.read.format("halfmoon")`` works where Halfmoon is installed, with no registration in the user's program.
"""

from halfmoon.spark.source.source import HalfmoonSource

DefaultSource = HalfmoonSource

__all__ = ["DefaultSource"]
