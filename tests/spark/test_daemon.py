"""Tests of the daemon that workers are forked from: PySpark comes from where it is installed, where that is the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from halfmoon.spark.daemon import without_archives


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with PySpark, its archives in it, and Py4J."""
    library = tmp_path / "site" / "pyspark" / "python" / "lib"
    library.mkdir(parents=True)
    for file in (library / "pyspark.zip", library / "py4j-0.10-src.zip", tmp_path / "site" / "pyspark" / "__init__.py"):
        file.touch()
    (tmp_path / "site" / "py4j").mkdir()
    (tmp_path / "site" / "py4j" / "__init__.py").touch()
    return tmp_path / "site"


def archives(site: Path) -> list[str]:
    """Return the path entries of the archives, as Spark puts them."""
    return [str(site / "pyspark" / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10-src.zip")]


def test_archives_give_way_to_the_same_package_on_the_path(site: Path):
    assert without_archives(["", *archives(site), "/elsewhere", str(site)]) == ["", "/elsewhere", str(site)]


def test_archives_give_way_to_the_same_package_behind_a_symbolic_link(site: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(site, target_is_directory=True)
    path = [*archives(site), str(tmp_path / "link")]

    assert without_archives(path) == [str(tmp_path / "link")]


def test_archives_stay_where_their_package_is_not_on_the_path(site: Path, tmp_path: Path):
    path = ["", *archives(site), str(tmp_path)]

    assert without_archives(path) == path


def test_archives_stay_where_there_is_no_package_around_them(site: Path):
    (site / "pyspark" / "__init__.py").unlink()
    path = [*archives(site), str(site)]

    assert without_archives(path) == path


def test_archives_stay_where_py4j_is_nowhere_else(site: Path):
    (site / "py4j" / "__init__.py").unlink()
    (site / "py4j").rmdir()
    path = [*archives(site), str(site)]

    assert without_archives(path) == path


@pytest.mark.slow
def test_workers_take_pyspark_from_where_it_is_installed(spark: Any):
    def place(_: int) -> tuple[str, str, bool]:
        import py4j
        import pyspark

        return pyspark.__file__, py4j.__file__, any("pyspark.zip" in entry for entry in sys.path)

    (found,) = spark.sparkContext.parallelize([0], 1).map(place).collect()

    assert ".zip" not in found[0] + found[1]
    assert found[2] is False
