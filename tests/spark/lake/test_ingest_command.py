"""`halfmoon spark ingest` with the options that say what bodies are, which copies stay out, and where a catalog is."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("fastavro")

import fastavro

from halfmoon import Message, Producer
from halfmoon.spark.lake.table import LakeTable
from halfmoon.testing.local import LocalCluster
from tests.cli.conftest import run_alone  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "tag", "type": ["null", "string"]}]}
Run = Callable[..., Any]


@pytest.fixture
def run(run_alone: Run, spark: Any, cluster: LocalCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: F811
    """Ingest the test's topic into the test's table with some options."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster.nameserver)
    return lambda *words: run_alone("spark", "ingest", topic, tmp_path / "table", *words)


def avro(number: int) -> bytes:
    """Return an order."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), {"id": number, "tag": None})
    return out.getvalue()


def test_avro_bodies_go_into_an_iceberg_table_without_copies_and_in_few_files(
    run: Run, spark: Any, cluster: LocalCluster, topic: str, tmp_path: Path
):
    schema, catalog = tmp_path / "order.avsc", {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}"}
    schema.write_text(json.dumps(ORDER))
    with Producer(group="P_spark", nameserver=cluster.nameserver) as producer:
        for number in (1, 2, 1):
            producer.send(Message(topic, avro(number), keys=[f"o-{number}"]))
        producer.send(Message(topic, b"no order", keys=["none"]))

    ran = run(
        *("--format", "iceberg", "--name", "lake.orders", *(f"--catalog={name}={value}" for name, value in catalog.items())),
        *("--decode", "avro", "--avro", schema, "--partition", "day", "--dedup", "keys", "--compact-every", "1", "--json"),
    )

    found = ran.json()
    assert (ran.code, found["rows"], found["dropped"], found["refused"]) == (0, 2, 1, 1)
    table = LakeTable(tmp_path / "table", name="lake.orders", catalog=catalog)
    assert sorted(row.id for row in table.read(spark).select("id").collect()) == [1, 2]
    assert (table.state().snapshot is not None, len(table.files())) == (True, 1)


def test_what_was_left_out_and_kept_apart_is_said(run: Run, spark: Any, send: Run, topic: str, tmp_path: Path):
    send(topic, ['{"id": 1}', '{"id": 1}', "no"], keys=["same"])

    ran = run("--decode", "json", "--schema", "id bigint", "--dedup", "keys", "--dedup-within", "0")

    assert (ran.code, ran.out.startswith("1 row in 1 batch, 1 duplicates dropped, 1 in quarantine, ")) == (0, True)
    assert [row.id for row in LakeTable(tmp_path / "table").read(spark).select("id").collect()] == [1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--decode", "avro", "--avro", "no/such.avsc"), "no/such.avsc: No such file"),
        (("--decode", "avro"), "Avro schema cannot be read"),
        (("--dedup", "tags"), "there are msgId, keys"),
        (("--format", "iceberg"), "needs its name"),
        (("--decode", "json"), "needs a schema"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused_and_no_table_made(run: Run, tmp_path: Path, words: tuple[str, ...], text: str):
    ran = run(*words)

    assert ran.code == 2
    assert text in " ".join(ran.err.split())
    assert not (tmp_path / "table").exists()
