"""The session: its settings, and what is said where Java is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from halfmoon import Admin, Message, Producer
from halfmoon.errors import UsageError
from halfmoon.spark.sessions import check_java, cores_of
from halfmoon.testing.local import LocalCluster


@pytest.mark.parametrize(
    ("master", "count"),
    [("local", 1), ("local[3]", 3), ("local[4, 2]", 4), ("spark://host:7077", 0), ("yarn", 0), ("k8s://https://h", 0)],
)
def test_a_local_master_says_how_many_tasks_run_side_by_side(master: str, count: int):
    assert cores_of(master) == count


def java(place: Path, says: str) -> None:
    program = place / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize("says", ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_392"', "what?", ""])
def test_an_old_java_is_refused_with_where_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str):
    java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(UsageError, match=r"needs Java 17 or newer.*apt-get install"):
        check_java()


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19'])
def test_a_java_that_will_do_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str):
    java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    check_java()


def test_no_java_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no java on the PATH"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="does not run"):
        check_java()


def test_nothing_of_spark_is_imported_by_the_package_or_its_command():
    code = (
        "import sys, halfmoon, halfmoon.spark, halfmoon.cli.main\n"
        "found = [name for name in sys.modules if name.partition('.')[0] in ('pyspark', 'pyarrow', 'numpy')]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_function_is_no_module_whatever_was_imported():
    import halfmoon.spark

    assert callable(halfmoon.spark.session)
    assert callable(halfmoon.spark.session)  # what was looked up first may have been replaced by its module
    assert callable(halfmoon.spark.register)


@pytest.mark.slow
def test_the_session_has_the_settings_that_the_source_is_quick_with(spark: Any):
    import halfmoon.spark

    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass").endswith("FileSystemBasedCheckpointFileManager")
    assert spark.sparkContext.master == "local[2]"
    assert halfmoon.spark.session(master="local[2]").sparkContext is spark.sparkContext


HOME = Path(pyspark.__file__).parent
JOB = """
import json, sys
from halfmoon.spark import session
spark = session()
frame = spark.read.format("halfmoon").options(endpoints=sys.argv[1], topic=sys.argv[2]).load()
facts = {
    "master": spark.sparkContext.master, "shuffle": spark.conf.get("spark.sql.shuffle.partitions"),
    "partitions": frame.rdd.getNumPartitions(), "rows": frame.count(),
}
print("facts", json.dumps(facts))
spark.stop()
"""


def facts_of(cluster: LocalCluster, topic: str, place: Path, command: list[str], **environment: str) -> dict[str, Any]:
    """Run a program in a process of its own that reads a topic of four queues; return what it says of its session."""
    with Admin(nameserver=cluster.nameserver) as admin, Producer(group="P", nameserver=cluster.nameserver) as producer:
        admin.create_topic(topic, queue_count=4)
        for queue in producer.queues(topic):
            producer.send(Message(topic, b"paid"), queue=queue)
    (place / "job.py").write_text(JOB)
    here = {name: value for name, value in os.environ.items() if name != "PYSPARK_HALFMOON_CORES"}  # of this process's session
    own = {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, str(place / "job.py"), cluster.nameserver, topic],
        capture_output=True, text=True, timeout=240, env={**here, **own, **environment}, check=False,
    )  # fmt: skip
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("facts ")] or [done.stderr[-3000:]]
    found: dict[str, Any] = json.loads(said.removeprefix("facts "))
    return found


@pytest.mark.slow
def test_a_submitted_program_runs_where_and_as_its_submitter_says(cluster: LocalCluster, topic: str, tmp_path: Path):
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=5"]
    said = facts_of(cluster, topic, tmp_path, command, SPARK_MASTER="local[7]")

    assert (said["master"], said["shuffle"], said["rows"]) == ("local[1]", "5", 4)
    assert said["partitions"] == 4  # one for each queue: what plans does not know the cluster


@pytest.mark.slow
def test_a_cluster_gets_a_task_for_each_queue(cluster: LocalCluster, topic: str, tmp_path: Path):
    said = facts_of(cluster, topic, tmp_path, [sys.executable], SPARK_MASTER="local-cluster[2,1,1024]")

    assert (said["master"], said["partitions"], said["rows"]) == ("local-cluster[2,1,1024]", 4, 4)
