"""Spark session with the settings that make the source and the sink fast, and the check for Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from halfmoon.data.partitions import ONE_PER_QUEUE
from halfmoon.errors import UsageError
from halfmoon.spark.daemon import MODULE
from halfmoon.spark.jvm_archive import cache, java_options
from halfmoon.spark.source.source import RocketmqSource

JAVA_MIN = 17
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PYTHON = "spark.pyspark.python"

ALWAYS = {
    "spark.python.unix.domain.socket.enabled": "true",  # TCP on loopback stalls each Python task for tens of ms
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
}
LOCAL = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),  # for one driver and local disks only; the default takes tens of ms more a trigger
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}

GET_JAVA = (
    f"Spark needs Java {JAVA_MIN} or newer. Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: "
    "brew install openjdk@17. Set JAVA_HOME if it is not on the PATH"
)


def session(
    name: str = "",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    warehouse: Path | None = None,
    archive: bool = False,
) -> SparkSession:
    """Return the Spark session of this process, started if there is none.

    ``name`` is the application's. ``master`` is Spark's (``local[4]``, ``spark://…``, ``yarn``, ``k8s://…``). What is not given is
    taken from ``spark-submit`` where the program was submitted; else the master is SPARK_MASTER, or this machine with all cores.
    ``settings`` are Spark's own and win over ours, as do those that ``spark-submit`` was given. ``warehouse`` is the directory of
    its tables. ``archive``: a local session uses `halfmoon.spark.jvm_archive` to start faster, unless ``settings`` have Java
    options of their own; the first one writes 160 MB into the user's cache. A session that runs already keeps its core settings;
    those of SQL change.

    Raises:
        UsageError: there is no Java, or an old one.
    """
    java = check_java()
    given = submitted()
    master = master or given.get("spark.master") or os.environ.get("SPARK_MASTER") or "local[*]"
    is_local = re.match(r"local(\[|$)", master) is not None
    merged = {**ALWAYS, **(LOCAL if is_local else {}), **given, **(settings or {})}
    if warehouse is not None:
        merged.setdefault("spark.sql.warehouse.dir", str(warehouse))
    if archive and is_local and JAVA_OPTIONS not in merged and SparkSession.getActiveSession() is None:
        merged[JAVA_OPTIONS] = java_options(java, cache())
    if is_local:
        _use_this_python(merged)
    os.environ["PYSPARK_HALFMOON_CORES"] = str(cores_of(master) or ONE_PER_QUEUE)
    builder = SparkSession.builder.appName(name or given.get("spark.app.name", "halfmoon")).master(master)
    for key, value in merged.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def submitted() -> dict[str, str]:
    """Return the settings that ``spark-submit`` was given; none where this program was not submitted."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # the JVM that runs already has them
    return dict(SparkConf().getAll())


def _use_this_python(settings: dict[str, str]) -> None:
    """Let workers run this interpreter, which has pyarrow and halfmoon, unless another one was chosen."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if os.environ["PYSPARK_PYTHON"] == sys.executable and PYTHON not in settings:
        settings.setdefault("spark.python.daemon.module", MODULE)  # a worker starts in half of the processor time


def register(spark: SparkSession) -> None:
    """Register the short name ``rocketmq`` with a session; ``halfmoon`` is known wherever the package is installed."""
    spark.dataSource.register(RocketmqSource)


def cores_of(master: str) -> int:
    """Return how many tasks a local master runs in parallel; 0: it is not a local one."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if match is None:
        return 0
    return len(os.sched_getaffinity(0)) if match[1] == "*" else int(match[1] or 1)


def check_java() -> str:
    """Return the output of ``java -version``. Raises UsageError where Spark cannot use that Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise UsageError(f"there is no java on the PATH. {GET_JAVA}")
    try:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise UsageError(f"{java} does not run: {exc}. {GET_JAVA}") from None
    match = re.search(r'version "(?:1\.)?(\d+)', version)
    if match is None or int(match[1]) < JAVA_MIN:
        raise UsageError(f"{java} is {version.splitlines()[0] if version else 'silent'}. {GET_JAVA}")
    return version
