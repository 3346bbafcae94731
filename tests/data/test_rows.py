"""Tests of stored records as Arrow rows: all columns equal those of the plain road; no Spark session is needed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.data import rows
from halfmoon.data.rows import COLUMNS, MS_MAX, MS_MIN, SCHEMA, batch_of, schema_of
from halfmoon.errors import BadMessage, UsageError
from halfmoon.hot import MAGIC_V2, NATIVE, row_columns
from halfmoon.wire import properties
from halfmoon.wire.codes import COMPRESSED, LZ4, ZLIB, ZSTD
from halfmoon.wire.compression import compress, decompress
from halfmoon.wire.ids import pack_host
from halfmoon.wire.record import decode_records
from tests.columns.test_twins import damaged
from tests.records import record_of

V4, V6 = pack_host("192.0.2.10:51676"), pack_host("[2001:db8::7]:10911")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVERY = {"broker": "b-0", "begin": -(2**63), "end": 2**63 - 1}


@pytest.fixture(params=["as it is", "numpy"], scope="module", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled twin where it is installed, and with numpy alone."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(rows, "row_columns", lambda *_: None)
        yield


def record(**changes) -> bytes:
    """Return the bytes of one record."""
    facts = {"topic": "orders", "queue_id": 3, "queue_offset": 7, "physical_offset": 4096, "body": b"hello"}
    facts |= {"born_host": V4, "store_host": V4}
    facts |= {"properties": properties.encode({"KEYS": "k1 k2", "TAGS": "paid", "UNIQ_KEY": "7F00", "color": "red"})}
    facts |= {"born_ms": 1_700_000_000_000, "store_ms": 1_700_000_000_123}
    return record_of(**{**facts, **changes})


def instant(ms: int) -> datetime:
    """Return a point in time as a row shows it."""
    return EPOCH + timedelta(milliseconds=min(max(ms, MS_MIN), MS_MAX))


def plain_rows(raw: bytes, broker: str = "b-0") -> list[dict[str, object]]:
    """Return the rows that the plain road makes."""
    return [
        {
            "topic": m.topic,
            "brokerName": broker,
            "queueId": m.queue_id,
            "queueOffset": m.queue_offset,
            "commitOffset": m.physical_offset,
            "msgId": m.msg_id,
            "keys": m.properties.get("KEYS"),
            "tags": m.properties.get("TAGS"),
            "properties": sorted(m.properties.items()),
            "bornTimestamp": instant(m.born_ms),
            "bornHost": m.born_host,
            "storeTimestamp": instant(m.store_ms),
            "sysFlag": m.sys_flag & ~COMPRESSED,
            "flag": m.flag,
            "reconsumeTimes": m.reconsume_times,
            "preparedTransactionOffset": m.prepared_transaction_offset,
            "body": decompress(m.body, m.sys_flag),
        }
        for m in decode_records(raw)
    ]


def arrow_rows(raw: bytes, **changes) -> list[dict[str, object]]:
    """Return the rows of a batch, its maps sorted."""
    batch = batch_of(raw, **{**EVERY, **changes})
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    return [{**row, "properties": sorted(row["properties"])} for row in batch.to_pylist()]


i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
pieces = st.sampled_from(
    [
        *(
            b"\x01",
            b"\x02",
            b"KEYS\x01",
            b"TAGS\x01",
            b"UNIQ_KEY\x01",
            b"a\x01",
            b"ab\x01",
            b"abcde\x01",
            b"abXde\x01",
            b"v\x02",
            b"v",
        ),
        *(b"\xff", b"\xfe\x01w\x02", "ü".encode(), "ü\x01ö\x02".encode()),
    ]
)
stored = st.lists(pieces, max_size=14).map(b"".join) | st.dictionaries(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "ab"]), st.text("xyzü", max_size=4)
).map(properties.encode)


@st.composite
def any_record(draw: st.DrawFn) -> bytes:
    """Return a record with whatever its fields can hold; a compressed body now and then."""
    body, flags = draw(st.binary(max_size=40)), draw(st.integers(0, 0xFF)) & ~COMPRESSED
    if draw(st.booleans()):
        body, flags = zlib.compress(body), flags | COMPRESSED | draw(st.sampled_from([0, ZLIB]))
    return record(
        topic=draw(st.sampled_from(["t", "orders", "ü" * 40, "long" * 40])),
        magic=draw(st.sampled_from([None, MAGIC_V2])),
        queue_id=draw(i32),
        queue_offset=draw(i64.filter(lambda n: n < 2**63 - 1)),
        physical_offset=draw(i64),
        body=body,
        properties=draw(stored),
        born_ms=draw(i64),
        born_host=draw(st.sampled_from([V4, V6])),
        store_ms=draw(i64),
        store_host=draw(st.sampled_from([V4, V6])),
        flag=draw(i32),
        sys_flag=flags,
        reconsume_times=draw(i32),
        prepared_transaction_offset=draw(i64),
    )


@given(st.lists(any_record(), max_size=6))
def test_all_columns_say_what_the_plain_road_says(parts: list[bytes]):
    raw = b"".join(parts)

    assert arrow_rows(raw) == plain_rows(raw)


@st.composite
def ordinary_record(draw: st.DrawFn) -> bytes:
    """Return a record as most are: hosts of IPv4, a plain body, properties of UTF-8."""
    names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "ab"])
    return record(
        magic=draw(st.sampled_from([None, MAGIC_V2])),
        queue_offset=draw(st.integers(0, 9)),
        physical_offset=draw(i64),
        body=draw(st.binary(max_size=40)),
        properties=properties.encode(draw(st.dictionaries(names, st.text("xyzü", max_size=4), max_size=4))),
        born_ms=draw(i64),
        sys_flag=draw(st.sampled_from([0, 4, 8, 12])),
    )


@given(st.lists(ordinary_record(), max_size=12), st.integers(0, 9), st.integers(0, 9), st.booleans(), st.permutations(COLUMNS))
def test_both_twins_make_the_same_of_ordinary_records(parts: list[bytes], begin: int, end: int, verify: bool, columns: list[str]):
    raw, columns = b"".join(parts), columns[: 1 + begin + end]
    asked = {"broker": "b", "begin": begin, "end": end, "columns": columns, "verify": verify}
    found = rows.row_columns(raw, begin, end, [name for name in columns if name != "brokerName"], verify)
    assert (found is None) == (NATIVE is None or rows.row_columns is not row_columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "row_columns", lambda *_: None)
        by_numpy = batch_of(raw, **asked)

    made = batch_of(raw, **asked)

    made.validate(full=True)
    assert made.equals(by_numpy)
    assert made.schema.equals(by_numpy.schema)


@given(st.lists(ordinary_record(), min_size=1, max_size=4), st.data(), st.booleans(), st.permutations(COLUMNS))
def test_both_twins_make_the_same_of_damaged_records(parts: list[bytes], data: st.DataObject, verify: bool, columns: list[str]):
    raw = damaged(b"".join(parts), data.draw)
    columns = columns[: data.draw(st.integers(1, len(columns)))]

    def made() -> pa.RecordBatch | str:
        try:
            return batch_of(raw, broker="b", begin=0, end=9, columns=columns, verify=verify)
        except (BadMessage, UsageError) as exc:
            return f"{type(exc).__name__}: {exc}"

    found = made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "row_columns", lambda *_: None)
        by_numpy = made()

    assert found == by_numpy


@given(st.lists(any_record(), min_size=1, max_size=3), st.data())
def test_a_damaged_record_is_an_error_where_the_plain_road_has_one(parts: list[bytes], data: st.DataObject):
    raw = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        wanted = plain_rows(bytes(raw))
    except (BadMessage, UsageError):
        with pytest.raises((BadMessage, UsageError)):
            arrow_rows(bytes(raw))
    else:
        offsets = [row["queueOffset"] for row in wanted]
        assert arrow_rows(bytes(raw)) == [row for row, offset in zip(wanted, offsets, strict=True) if offset < 2**63 - 1]


def test_no_records_are_no_rows():
    assert arrow_rows(b"") == []
    assert batch_of(record(), broker="b", begin=100, end=200).num_rows == 0


def test_a_record_without_properties_has_the_brokers_id_and_no_keys():
    (row,) = arrow_rows(record(properties=b"", store_host=pack_host("127.0.0.1:10911"), physical_offset=0xABC))

    assert (row["msgId"], row["keys"], row["tags"], row["properties"]) == ("7F00000100002A9F0000000000000ABC", None, None, [])


def test_an_id_of_an_ipv6_broker_has_56_digits():
    (row,) = arrow_rows(record(properties=b"", store_host=V6, born_host=V6))

    assert row["msgId"] == f"20010DB8{'0' * 20}000700002A9F{4096:016X}"
    assert row["bornHost"] == "[2001:db8::7]:10911"


@pytest.mark.parametrize(("kind", "package"), [(ZLIB, "zlib"), (LZ4, "lz4"), (ZSTD, "zstandard")])
def test_compressed_bodies_are_rows_as_they_were_sent(kind: int, package: str):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    body = b"a text that is long enough " * 20
    raw = record() + record(body=compress(body, kind), sys_flag=COMPRESSED | kind) + record(body=b"x")

    found = arrow_rows(raw)

    assert [row["body"] for row in found] == [b"hello", body, b"x"]
    assert [row["sysFlag"] for row in found] == [0, kind, 0]


def test_a_compressed_body_that_is_damaged_names_its_offset():
    raw = record() + record(body=b"not a stream", sys_flag=COMPRESSED | ZLIB, queue_id=2, queue_offset=77)

    with pytest.raises(BadMessage, match=r"broker b-0: record at byte \d+ \(queue 2, offset 77\): not a zlib stream"):
        arrow_rows(raw)


def test_bodies_that_grow_too_large_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rows, "INFLATED_BYTES_MAX", 10_000)
    raw = record(body=zlib.compress(bytes(9_000)), sys_flag=COMPRESSED | ZLIB)
    assert len(arrow_rows(raw)[0]["body"]) == 9_000

    with pytest.raises(UsageError, match="ask for less"):
        arrow_rows(raw + raw)


def test_a_damaged_record_names_broker_queue_and_offset():
    bad = bytearray(record(queue_id=5, queue_offset=1234))
    bad[84] = 0x7F

    with pytest.raises(BadMessage, match=r"broker b-9: record at byte \d+ \(queue 5, offset 1234\): the body's length"):
        arrow_rows(record() + bytes(bad), broker="b-9")


def test_a_body_of_another_crc_is_an_error_only_when_asked():
    bad = bytearray(record(queue_id=5, queue_offset=1234))
    bad[88] ^= 1

    assert arrow_rows(bytes(bad))[0]["body"] == b"iello"
    with pytest.raises(BadMessage, match=r"offset 1234\): the body's CRC"):
        arrow_rows(bytes(bad), verify=True)
    assert len(arrow_rows(record(), verify=True)) == 1


def test_a_range_is_cut_to_its_offsets_and_gaps_stay_gaps():
    raw = b"".join(record(queue_offset=i) for i in (3, 4, 7, 8, 9))

    assert [row["queueOffset"] for row in arrow_rows(raw, begin=4, end=9)] == [4, 7, 8]


def test_chosen_columns_come_alone_and_in_their_order():
    batch = batch_of(record(), **EVERY, columns=("body", "queueOffset"))

    assert batch.schema == pa.schema([("body", pa.binary()), ("queueOffset", pa.int64())]) == schema_of(["body", "queueOffset"])
    assert batch.to_pylist() == [{"body": b"hello", "queueOffset": 7}]
    assert batch_of(record(), **EVERY, columns=()).num_columns == 0


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_can_be_made_alone(name: str):
    raw = record() + record(properties=b"", born_host=V6)

    assert batch_of(raw, **EVERY, columns=[name]).column(0).to_pylist() == batch_of(raw, **EVERY).column(name).to_pylist()


def test_an_unknown_column_is_named():
    with pytest.raises(UsageError, match="no column 'offset'"):
        schema_of(["topic", "offset"])


def test_a_name_given_twice_counts_with_its_last_value():
    (row,) = arrow_rows(record(properties=b"a\x011\x02TAGS\x01x\x02a\x012\x02TAGS\x01y\x02TAGS\x01\x02"))

    assert (row["tags"], row["properties"]) == ("y", [("TAGS", "y"), ("a", "2")])
