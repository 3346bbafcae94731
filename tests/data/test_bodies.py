"""Bodies to columns: what decodes is equal to what the plain road reads, and what does not is told apart, body by body."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.data import bodies
from halfmoon.errors import UsageError

ORDER = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])


def decoded(values: list[bytes | None], schema: Any = ORDER) -> bodies.Decoded:
    """Return JSON bodies decoded."""
    return bodies.Json(schema).decode(pa.array(values, pa.binary()))


def faults(values: list[bytes | None], schema: Any = ORDER) -> dict[int, str]:
    """Return the kind of fault of each bad body."""
    return {place: kind for place, (kind, _) in decoded(values, schema).bad.items()}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"id": "x"}', "wrong type"),
        (b'{"id": 1.5}', "wrong type"),
        (b'{"id": 99999999999999999999}', "wrong type"),
        (b'{"at": 5}', "wrong type"),
        (b'{"day": "2026-02-30"}', "wrong type"),
        (b'{"id": 1}{"id": 2}', "not JSON"),
        (b'{"id": 1},{"id": 2}', "not JSON"),
        (b'{"id": 1}, "x": {}', "not JSON"),
        (b'{"id":', "not JSON"),
        (b'{"id": 1}}', "not JSON"),
        (b'{"name": "a\nb"}', "not JSON"),
        (b"[1]", "not JSON"),
        (b"", "not JSON"),
        (None, "empty"),
        (b'{"id": 1, "id": 2}', "field twice"),
        (b'{"name": "\xff"}', "not UTF-8"),
        (b'{"name": "\xc3"}', "not UTF-8"),
        (b'{"id":' + b"[" * 1_000_000 + b"}", "wrong type"),
    ],
)
def test_a_body_that_does_not_fit_is_told_apart_from_its_neighbours(body: bytes | None, kind: str):
    found = decoded([b'{"id": 1}', body, b'{"id": 3}'])

    assert {place: fault for place, (fault, _) in found.bad.items()} == {1: kind}
    assert (found.good.tolist(), found.columns.column("id").to_pylist()) == ([0, 2], [1, 3])


def test_two_bodies_that_are_only_together_json_are_both_bad():
    halves: list[bytes | None] = [
        b'{"id": 1, "x": [{}',
        b']}{"id": 2}',
        b'{"id":',
        b'{"x":1}}',
        b'{"id": 1}{"id": 2}',
        b'{"name": "a',
        b'"}',
    ]

    assert faults(halves).keys() == set(range(len(halves)))


def test_blanks_and_line_breaks_around_and_inside_are_no_fault():
    found = decoded([b' {"id": 1}\n', b'{\n  "id": 2,\r\n  "name": "b"\n}', b'\t{"id":3}'])

    assert found.columns.column("id").to_pylist() == [1, 2, 3]


def test_fields_beyond_the_schema_are_passed_over_and_missing_ones_are_null():
    found = decoded([b'{"other": {"deep": [[[{}]]]}}', b'{"id": null, "day": "2026-01-31", "at": "2026-01-31T14:00:00+02:00"}'])

    assert found.columns.select(["id", "day"]).to_pylist()[0] == {"id": None, "day": None}
    second = found.columns.to_pylist()[1]
    assert (second["day"].isoformat(), second["at"].isoformat()) == ("2026-01-31", "2026-01-31T12:00:00+00:00")


def test_a_field_that_must_be_there_and_is_not_makes_a_body_bad():
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])

    assert faults([b'{"id": 1}', b"{}", b'{"id": null}'], schema) == {1: "missing field", 2: "missing field"}


_scalars = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.booleans()
_bodies = st.one_of(
    st.fixed_dictionaries({"id": st.integers(-(2**63), 2**63 - 1)}, optional={"name": st.text(max_size=8), "x": _scalars}).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    ),
    st.text('{}[]",:\n\\0a ', max_size=12).map(str.encode),
    st.text('{}",: a1', max_size=10).map(lambda text: b"{" + text.encode() + b"}"),
)


def _plain(body: bytes) -> dict[str, Any] | None:
    """Return what Python's reader finds, None where the body does not fit the schema."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs if name in ("id", "name")}) < sum(name in ("id", "name") for name, _ in pairs):
            raise ValueError
        return dict(pairs)

    try:
        value = json.loads(body.decode(), object_pairs_hook=once)
    except ValueError:
        return None
    if not isinstance(value, dict) or not (value.get("id") is None or type(value["id"]) is int):
        return None
    if not (value.get("name") is None or isinstance(value["name"], str)):
        return None
    return {"id": value.get("id"), "name": value.get("name")}


@given(st.lists(_bodies, max_size=12))
def test_decoding_many_together_equals_reading_each_alone(values: list[bytes]):
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    each = [_plain(value) for value in values]

    found = bodies.Json(schema).decode(pa.array(values, pa.binary()))

    assert found.good.tolist() == [place for place, row in enumerate(each) if row is not None]
    assert found.columns.to_pylist() == [row for row in each if row is not None]


# ---------------------------------------------------------------- Avro and text

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
            {
                "name": "items",
                "type": {
                    "type": "array",
                    "items": {"type": "record", "name": "SingleMessage", "fields": [{"name": "n", "type": "int"}]},
                },
            },
        ],
    }
)


def avro(value: dict[str, Any]) -> bytes:
    """Return a record written with `AVRO`."""
    fastavro = pytest.importorskip("fastavro")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO)), value)
    return out.getvalue()


def test_avro_bodies_become_columns_with_and_without_their_header():
    value = {"id": 7, "name": None, "total": Decimal("1.25"), "items": [{"n": 1}, {"n": 2}]}
    decoder = bodies.Avro(AVRO)
    plain = avro(value)
    header = b"\xc3\x01" + bytes.fromhex(
        pytest.importorskip("fastavro").schema.fingerprint(
            pytest.importorskip("fastavro").schema.to_parsing_canonical_form(json.loads(AVRO)), "CRC-64-AVRO"
        )
    )

    found = decoder.decode(
        pa.array([plain, header + plain, plain + b"x", plain[:-1], b"", None, b"\xc3\x01" + b"12345678" + plain])
    )

    assert found.columns.to_pylist() == [value, value]
    assert {place: kind for place, (kind, _) in found.bad.items()} == {
        2: "not Avro", 3: "not Avro", 4: "not Avro", 5: "not Avro", 6: "another schema"
    }  # fmt: skip


def one_field(kind: Any) -> str:
    """Return the schema of a record with one field ``x``."""
    return json.dumps({"type": "record", "name": "R", "namespace": "shop", "fields": [{"name": "x", "type": kind}]})


def written(schema: str, *values: Any) -> list[bytes]:
    """Return records with ``x`` as these values."""
    fastavro = pytest.importorskip("fastavro")
    found = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), {"x": value})
        found.append(out.getvalue())
    return found


NODE = {"type": "record", "name": "Node", "fields": [{"name": "n", "type": "int"}]}


@pytest.mark.parametrize(
    ("kind", "value", "column", "kept"),
    [
        ("boolean", True, pa.bool_(), True),
        ({"type": "string", "logicalType": "uuid"}, UUID(int=7), pa.string(), str(UUID(int=7))),
        ({"type": "array", "items": {"type": "string", "logicalType": "uuid"}}, [UUID(int=7)], None, [str(UUID(int=7))]),
        ({"type": "map", "values": ["null", "int"]}, {"a": None, "b": 2}, None, [("a", None), ("b", 2)]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(), b"ab"),
        ({"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-1.25"), None,
         Decimal("-1.25")),
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 31), pa.date32(), date(2026, 1, 31)),
        ({"type": "long", "logicalType": "timestamp-millis"}, datetime(2026, 1, 31, 8, tzinfo=UTC), pa.timestamp("us", "UTC"),
         datetime(2026, 1, 31, 8, tzinfo=UTC)),
        ({"type": "string", "logicalType": "colour"}, "red", pa.string(), "red"),
        ({"type": "array", "items": NODE}, [{"n": 1}], None, [{"n": 1}]),
        (["null", NODE], None, None, None),
    ],
)  # fmt: skip
def test_each_avro_type_becomes_a_column(kind: Any, value: Any, column: pa.DataType | None, kept: Any):
    schema = one_field(kind)
    decoder = bodies.Avro(schema)

    found = decoder.decode(pa.array(written(schema, value)))

    assert (found.columns.column("x").to_pylist(), found.bad) == ([kept], {})
    assert column is None or decoder.schema.field("x").type == column


def test_a_type_that_was_named_before_is_known_by_its_name():
    schema = json.dumps(
        {"type": "record", "name": "R", "namespace": "shop", "fields": [{"name": "a", "type": NODE}, {"name": "b", "type": "Node"}]}
    )

    assert bodies.Avro(schema).schema.field("b").type == bodies.Avro(schema).schema.field("a").type


@pytest.mark.parametrize(
    ("kind", "right", "raw"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal("1.25"), b"\x10" + b"\x7f" * 8),
        ("int", 5, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ],
    ids=["decimal", "int"],
)
def test_a_value_too_large_for_its_column_makes_its_body_bad_and_no_other(kind: Any, right: Any, raw: bytes):
    schema = one_field(kind)
    (body,) = written(schema, right)

    found = bodies.Avro(schema).decode(pa.array([body, raw, body, body, b"", raw, body]))

    assert (found.columns.column("x").to_pylist(), found.good.tolist()) == ([right] * 4, [0, 2, 3, 6])
    assert {place: kind for place, (kind, _) in found.bad.items()} == {1: "wrong type", 4: "not Avro", 5: "wrong type"}


@given(st.lists(st.binary(max_size=24), max_size=6))
def test_no_bytes_make_the_avro_decoder_raise_or_lose_a_body(values: list[bytes]):
    pytest.importorskip("fastavro")

    found = bodies.Avro(AVRO).decode(pa.array(values, pa.binary()))

    assert sorted([*found.good.tolist(), *found.bad]) == list(range(len(values)))
    assert found.columns.num_rows == len(found.good)


def test_text_bodies_are_checked():
    found = bodies.Text().decode(pa.array([b"gr\xc3\xbcn", b"\xff", b""]))

    assert (found.columns.column("text").to_pylist(), set(found.bad)) == (["grün", ""], {1})


@pytest.mark.parametrize(
    ("kind", "schema", "avro"),
    [
        ("json", None, ""),
        ("protobuf", None, ""),
        ("avro", None, "{"),
        ("avro", None, '"string"'),
        ("avro", None, '{"type": "record", "name": "X", "fields": [{"name": "x", "type": "null"}]}'),
        ("avro", None, one_field({"type": "int", "logicalType": "time-millis"})),
        ("avro", None, one_field({"type": "fixed", "name": "F", "size": 0})),
        ("avro", None, one_field({"type": "bytes", "logicalType": "decimal", "precision": 39})),
        ("avro", None, one_field({"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]})),
        ("avro", None, one_field(["string", "long"])),
        ("json", pa.schema([("x", pa.map_(pa.string(), pa.string()))]), ""),
        ("json", pa.schema([("x", pa.list_(pa.date32()))]), ""),
    ],
)
def test_what_cannot_be_decoded_is_refused_at_once(kind: str, schema: Any, avro: str):
    with pytest.raises(UsageError):
        bodies.decoder(kind, schema, avro)
