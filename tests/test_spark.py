"""What `import halfmoon.spark` gives: each public name when it is first asked for, and no other."""

from __future__ import annotations

import pytest

from halfmoon import spark


@pytest.mark.parametrize("name", spark.__all__)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(spark, name).__doc__
    assert name in dir(spark)


def test_what_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match=r"module 'halfmoon\.spark' has no attribute 'Nothing'"):
        _ = spark.Nothing
