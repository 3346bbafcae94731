"""Options of reading: whoever parses them has all that planning and decoding ask for."""

from __future__ import annotations

from halfmoon.data.options import ReadOptions
from halfmoon.spark.source.options import source_options


def test_the_options_of_spark_are_enough_to_plan_and_to_read():
    options = source_options({"endpoints": "x:1", "topic": "orders"}, "batch")
    asked = [name for name, value in vars(ReadOptions).items() if isinstance(value, property)]

    assert [name for name in asked if not hasattr(options, name)] == []
    assert {"topic", "fail_on_data_loss", "loss_option"} <= set(asked)
