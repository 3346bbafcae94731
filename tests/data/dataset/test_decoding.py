"""Bodies as columns: schemas given and inferred, null rows with one warning, and names that do not collide."""

from __future__ import annotations

import pyarrow as pa
import pytest

from halfmoon.data.dataset.decoding import INFERRED_MAX, Undecoded, body_columns, inferred
from halfmoon.errors import UsageError

BODIES = [b'{"n": 1, "who": "ann"}', b"broken", b'{"n": "x"}', b'{"n": 2, "who": null}']


def batch(bodies: list[bytes]) -> pa.RecordBatch:
    count = len(bodies)
    columns = {"queueId": pa.array([3] * count, pa.int32()), "queueOffset": pa.array(range(10, 10 + count), pa.int64())}
    return pa.record_batch({**columns, "body": pa.array(bodies, pa.binary())})


@pytest.mark.parametrize("into", ["", "order"])
def test_a_body_that_does_not_parse_is_a_null_row_and_one_warning_tells_how_many_and_the_first(
    into: str, caplog: pytest.LogCaptureFixture
):
    columns = body_columns("json", pa.schema([("n", pa.int64()), ("who", pa.string())]), into, None)
    assert columns is not None
    undecoded = Undecoded("orders", "json")
    arrays = columns.arrays("a", batch(BODIES), undecoded)
    columns.arrays("a", batch([b"more"]), undecoded)
    undecoded.report()

    rows = pa.table(arrays, schema=pa.schema(columns.fields)).to_pylist()
    good = [{"n": 1, "who": "ann"}, {"n": 2, "who": None}]
    bad = {into: None} if into else {"n": None, "who": None}
    assert rows == [{into: good[0]} if into else good[0], bad, bad, {into: good[1]} if into else good[1]]
    (warning,) = caplog.messages
    assert "topic=orders decode=json count=3 first=broker a queue 3 offset 11: not JSON" in warning


def test_nothing_is_logged_where_all_bodies_parse(caplog: pytest.LogCaptureFixture):
    Undecoded("orders", "json").report()

    assert caplog.messages == []


@pytest.mark.parametrize(
    ("bodies", "schema"),
    [
        ([b'{"a": 1, "b": "x"}', b"broken", b'{"a": 2.5, "c": null}'], {"a": pa.float64(), "b": pa.string(), "c": pa.string()}),
        ([b'{"at": "2026-01-01 00:00:00", "l": [{"t": "2026-01-01"}]}'],
         {"at": pa.string(), "l": pa.list_(pa.struct([("t", pa.string())]))}),
        ([b'{"a": 1}\n\t', b'{"a":\n2}'], {"a": pa.int64()}),
        ([b"[1]", b"1", b""], {}),
        ([], {}),
    ],
)  # fmt: skip
def test_a_schema_is_inferred_from_the_objects_among_the_first_bodies(bodies: list[bytes], schema: dict[str, pa.DataType]):
    assert inferred(pa.array(bodies, pa.binary())) == pa.schema(list(schema.items()))


def test_only_so_many_bodies_are_looked_at():
    bodies = [b'{"a": 1}'] * INFERRED_MAX + [b'{"b": 1}']

    assert inferred(pa.array(bodies, pa.binary())).names == ["a"]


def test_values_that_do_not_go_together_are_an_error_that_asks_for_a_schema():
    with pytest.raises(UsageError, match=r"no schema fits all of the first bodies.*Give schema="):
        inferred(pa.array([b'{"a": 1}', b'{"a": "x"}'], pa.binary()))


def test_a_field_may_not_have_the_name_of_another_column_but_may_stand_inside_one():
    bodies = pa.array([b'{"topic": 1}'], pa.binary())

    with pytest.raises(UsageError, match="give into=COLUMN"):
        body_columns("json", None, "", bodies)
    found = body_columns("json", None, "order", bodies)
    assert found is not None
    assert found.fields == [pa.field("order", pa.struct([("topic", pa.int64())]))]


def test_bodies_stay_bytes_unless_they_are_decoded():
    assert body_columns("binary", None, "", None) is None
    with pytest.raises(UsageError, match="decode='yaml' is unknown"):
        body_columns("yaml", None, "", None)
