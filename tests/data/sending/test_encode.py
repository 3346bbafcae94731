"""Tests of rows as batches: what is sent is what a producer would send, and what cannot be sent is refused by its row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.client.core.produce.selector import select_by_hash
from halfmoon.data.sending.encode import Chunk, Encoding, Ids, check_columns, chunks_of, own_columns
from halfmoon.errors import MessageIllegal, UsageError
from halfmoon.model import RESERVED_PROPERTIES, Message, MessageQueue
from halfmoon.wire import properties
from halfmoon.wire.record import decode_batch

IDS = Ids.of("query", 7, 3)
QUEUES = [MessageQueue("orders", broker, i) for broker in ("b-0", "b-1") for i in range(3)]
SCHEMA = pa.schema(
    [
        *(("body", pa.binary()), ("topic", pa.string()), ("tags", pa.string()), ("keys", pa.string())),
        *(("properties", pa.map_(pa.string(), pa.string())), ("shardingKey", pa.string()), ("delayLevel", pa.int32())),
        *(("deliverAt", pa.timestamp("us", tz="UTC")), ("queueId", pa.int32())),
    ]
)


def queues_of(topic: str) -> list[MessageQueue]:
    """Return the queues of a topic."""
    return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in QUEUES]


def table(rows: list[dict], *names: str) -> pa.RecordBatch:
    """Return rows as a batch, with the columns named, or all that a row has."""
    names = names or tuple(name for name in SCHEMA.names if any(name in row for row in rows))
    return pa.RecordBatch.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in names]))


def sent(pieces: list[Chunk]) -> list[tuple[str, MessageQueue | None, bytes, dict[str, str]]]:
    """Return what pieces hold, message by message."""
    found = []
    for piece in pieces:
        items = decode_batch(piece.body) if piece.single is None else [piece.single]
        assert len(items) == piece.message_count
        found += ((piece.topic, piece.queue, item.body, properties.decode(item.properties)) for item in items)
    return found


def wanted(row: dict, number: int) -> dict[str, str]:
    """Return the properties that a producer gives such a message, less that it waits for the device, as all do."""
    message = Message(
        row.get("topic") or "orders",
        row["body"],
        row.get("tags"),
        row.get("keys") or "",
        dict(row.get("properties") or ()),
        delay_level=row.get("delayLevel") or 0,
        deliver_at=row.get("deliverAt"),
        msg_id=IDS.text(number),
    )
    return {name: value for name, value in message.wire_properties().items() if name != "WAIT"}


text = st.text("abü€ .", min_size=1, max_size=6)
moments = st.integers(0, 2_000_000_000_000).map(lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms))
times = st.sampled_from([{}, {}, {}, {"delayLevel": 3}, {"delayLevel": 0}]) | moments.map(lambda at: {"deliverAt": at})
one_row = st.builds(
    lambda times, **row: {**row, **times},
    times=times,
    body=st.binary(min_size=1, max_size=30),
    topic=st.sampled_from(["orders", "paid", "T3"]),
    tags=st.none() | text.map(str.strip) | st.just(""),
    keys=st.none() | text | st.just(""),
    properties=st.none()
    | st.dictionaries(text.filter(str.strip), text.filter(str.strip), max_size=3).map(lambda d: list(d.items())),
    shardingKey=st.none() | text | st.just(""),
    queueId=st.none() | st.integers(0, 2),
)


@given(st.lists(one_row, min_size=1, max_size=12), st.integers(0, 2**47), st.integers(23, 300), st.integers(0, 5), st.data())
@settings(max_examples=120)
def test_each_row_is_sent_as_a_producer_would_send_it(rows, first: int, batch_bytes: int, partition: int, data: st.DataObject):
    begin = data.draw(st.integers(0, len(rows) - 1))
    batch = table([{"body": b"before"}] * begin + rows, *SCHEMA.names).slice(begin)  # what a slice hides must stay hidden
    encoding = Encoding(batch_bytes=batch_bytes, queues=queues_of, partition=partition)

    pieces = list(chunks_of(batch, IDS, first, encoding))

    found = {item[3]["UNIQ_KEY"]: item for item in sent(pieces)}
    assert len(found) == len(rows) == sum(piece.message_count for piece in pieces)
    for number, row in enumerate(rows, first):
        topic, queue, body, given_properties = found[IDS.text(number)]
        assert (topic, body, given_properties) == (row["topic"], row["body"], wanted(row, number))
        if row["queueId"] is not None:
            brokers = ("b-0", "b-1")
            assert queue == MessageQueue(topic, brokers[partition % 2], row["queueId"])
        elif row["shardingKey"] is not None:
            assert queue == select_by_hash(queues_of(topic), Message(topic, b"x"), row["shardingKey"])
        else:
            assert queue is None


@given(st.lists(one_row, min_size=1, max_size=20), st.integers(30, 300))
def test_pieces_keep_the_order_of_the_rows_of_a_queue_and_the_bound(rows, batch_bytes: int):
    pieces = list(chunks_of(table(rows, *SCHEMA.names), IDS, 0, Encoding(batch_bytes=batch_bytes, queues=queues_of)))

    for topic, queue in {(piece.topic, piece.queue) for piece in pieces}:
        mine = [piece for piece in pieces if (piece.topic, piece.queue) == (topic, queue)]
        for of_a_kind in ([p for p in mine if p.single is None], [p for p in mine if p.single is not None]):
            numbers = [item[3]["UNIQ_KEY"] for item in sent(of_a_kind)]
            assert numbers == sorted(numbers)
    assert all(len(piece.body) <= batch_bytes or piece.message_count == 1 for piece in pieces)


def test_the_topic_of_the_option_wins():
    rows = [{"body": b"a", "topic": "other"}, {"body": b"b", "topic": None}]

    (piece,) = chunks_of(table(rows), IDS, 0, Encoding(topic="mine"))

    assert (piece.topic, piece.queue, piece.message_count) == ("mine", None, 2)


def test_a_marked_message_says_that_it_may_be_a_repeat():
    (piece,) = chunks_of(table([{"body": b"a"}]), IDS, 5, Encoding(topic="orders", repeat=True))

    (item,) = decode_batch(piece.body)
    marked = Message("orders", b"a", msg_id=IDS.text(5), attempt=2).wire_properties()
    assert marked.pop("WAIT") == "true"
    assert properties.decode(item.properties) == marked


def test_texts_may_be_bodies_and_large_types_are_taken():
    columns = {"body": pa.array(["grün"], pa.large_string()), "tags": pa.array(["t"], pa.large_string())}

    (piece,) = chunks_of(pa.RecordBatch.from_pydict(columns), IDS, 0, Encoding(topic="orders"))

    assert sent([piece])[0][2:] == ("grün".encode(), {"TAGS": "t", "UNIQ_KEY": IDS.text(0)})


def test_rows_beyond_the_bound_of_a_slice_are_encoded_in_halves():
    rows = [{"body": b"%04d" % i * 20} for i in range(100)]

    pieces = list(chunks_of(table(rows), IDS, 0, Encoding(topic="orders"), slice_bytes=1000))

    assert len(pieces) > 4
    assert [item[2] for item in sent(pieces)] == [row["body"] for row in rows]
    assert [item[3]["UNIQ_KEY"] for item in sent(pieces)] == [IDS.text(i) for i in range(100)]


def test_ids_are_those_of_their_names():
    assert Ids.of("q", 1, 2) == Ids.of("q", 1, 2) != Ids.of("q", 1, 3)
    assert len({Ids.of("q", 11, 2), Ids.of("q", 1, 12), Ids.of("q1", 1, 2)}) == 3
    assert IDS.text(255)[-12:] == "0000000000FF"
    assert len(IDS.text(0)) == 32


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"body": None}, "the body is null"),
        ({"body": b""}, "the body is empty"),
        ({"body": b"x" * 200}, r"larger than 200 bytes with its properties \(onTooLarge\)"),
        ({"properties": [("a", "x" * 40_000)]}, "properties are longer than 32000"),
        ({"tags": "a\x02b"}, "tags contains a separator"),
        ({"keys": "a\x01b"}, "keys contains a separator"),
        ({"tags": "a || b"}, "tag 'a .. b' cannot be subscribed to: .*use 'a-b', or a user property"),
        ({"tags": " paid"}, "tag ' paid' cannot be subscribed to"),
        ({"tags": "*"}, "tag '.' cannot be subscribed to"),
        ({"properties": [("color", "red"), ("TAGS", "x")]}, "'TAGS': the name is used by the protocol"),
        ({"properties": [(" ", "x")]}, "' ': a name or value is blank"),
        ({"properties": [("x", "")]}, "'x': a name or value is blank"),
        ({"properties": [("x", None)]}, "'x': a name or value is null"),
        ({"properties": [("x", "a\x02")]}, "'x': it contains a separator"),
        ({"delayLevel": 19}, "delayLevel is 1 to 18"),
        ({"delayLevel": -1}, "delayLevel is 1 to 18"),
        ({"delayLevel": 1, "deliverAt": datetime(2030, 1, 1, tzinfo=UTC)}, "both delayLevel and deliverAt"),
        ({"deliverAt": datetime(1960, 1, 1, tzinfo=UTC)}, "deliverAt is a time after 1970"),
        ({"topic": None}, "it has no topic"),
        ({"topic": ""}, "it has no topic"),
        ({"queueId": -1}, "topic .orders. has no queue -1"),
        ({"queueId": 3}, "topic 'orders' has no queue 3"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_the_number_of_its_row(row: dict, why: str):
    good = {"body": b"good", "topic": "orders", "properties": [("color", "red")]}
    batch = table([good, good, {**good, **row}, good], *SCHEMA.names)
    encoding = Encoding(message_bytes_max=200 if "larger" in why else 4 << 20, queues=queues_of)

    with pytest.raises(MessageIllegal, match=f"row 12 of the task: .*{why}"):
        list(chunks_of(batch, IDS, 10, encoding))


def test_rows_that_were_read_keep_the_tags_that_other_clients_gave_them():
    batch = pa.RecordBatch.from_pydict({"body": [b"a"], "tags": [" paid"], "msgId": ["ID1"]})

    (piece,) = chunks_of(batch, IDS, 0, Encoding(topic="orders"))

    assert sent([piece])[0][3]["TAGS"] == " paid"


def test_the_protocols_own_names_are_all_refused():
    for name in RESERVED_PROPERTIES:
        with pytest.raises(MessageIllegal, match="used by the protocol"):
            list(chunks_of(table([{"body": b"x", "properties": [(name, "v")]}]), IDS, 0, Encoding(topic="orders")))


def test_no_rows_are_no_pieces():
    assert list(chunks_of(table([], "body", "tags"), IDS, 0, Encoding(topic="orders"))) == []


@pytest.mark.parametrize(
    ("fields", "topic", "why"),
    [
        ([("tags", pa.string())], "t", "no column 'body'"),
        ([("body", pa.binary())], None, "the option 'topic', or a column"),
        ([("body", pa.int32())], "t", "column 'body' is int32, not binary or string"),
        ([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.int32()))], "t", "not map<string,string>"),
        ([("body", pa.binary()), ("queueId", pa.string())], "t", "column 'queueId' is string, not int"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_sent(fields, topic: str | None, why: str):
    with pytest.raises(UsageError, match=why):
        check_columns(pa.schema(fields), topic=topic)


def test_columns_that_fit_are_taken():
    assert check_columns(SCHEMA, topic=None) == []
    assert check_columns(pa.schema([("body", pa.large_string()), ("deliverAt", pa.int64())]), topic="t") == []


def test_columns_that_no_message_has_are_named():
    assert check_columns(
        pa.schema([("body", pa.binary()), ("tag", pa.string()), ("x", pa.map_(pa.string(), pa.int8()))]), topic="t"
    ) == ["tag", "x"]


def test_rows_that_were_read_leave_the_protocols_own_properties_behind():
    made = [("UNIQ_KEY", "7F"), ("colour", "red"), ("KEYS", "k1"), ("WAIT", "true")]
    rows = table([{"body": b"x", "properties": made, "keys": "k1"}, {"body": b"y", "keys": None, "properties": None}])

    (piece,) = chunks_of(rows.append_column("msgId", pa.array(["7F", "8F"])), IDS, 0, Encoding(topic="orders"))

    first, second = (properties.decode(item.properties) for item in decode_batch(piece.body))
    assert {name: first[name] for name in ("colour", "KEYS", "UNIQ_KEY")} == {
        "colour": "red",
        "KEYS": "k1",
        "UNIQ_KEY": IDS.text(0),
    }
    assert "colour" not in second


def test_names_of_columns_are_the_same_in_any_case():
    rows = pa.RecordBatch.from_pydict({"BODY": [b"x"], "Tags": ["red"], "KEYS": ["k"], "Other": [1]})

    assert check_columns(rows.schema, topic="t") == ["Other"]
    (piece,) = chunks_of(own_columns(rows, None), IDS, 0, Encoding(topic="t"))
    assert {"TAGS": "red", "KEYS": "k"}.items() <= sent([piece])[0][3].items()
    with pytest.raises(UsageError, match="more than one column 'tags'"):
        check_columns(pa.schema([("body", pa.string()), ("tags", pa.string()), ("TAGS", pa.string())]), topic="t")


def test_a_time_without_a_zone_is_meant_in_that_of_the_session_or_of_the_machine():
    noon = datetime(2030, 1, 1, 12)
    rows = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], "DeliverAt": pa.array([noon, None], pa.timestamp("us"))})
    (tokyo,) = chunks_of(own_columns(rows, "Asia/Tokyo"), IDS, 0, Encoding(topic="t", delayed_alone=False))
    (here,) = chunks_of(own_columns(rows, None), IDS, 0, Encoding(topic="t", delayed_alone=False))
    at = [properties.decode(decode_batch(piece.body)[0].properties)["TIMER_DELIVER_MS"] for piece in (tokyo, here)]

    assert at == [str(round(moment.timestamp() * 1000)) for moment in (datetime(2030, 1, 1, 3, tzinfo=UTC), noon)]
    assert "TIMER_DELIVER_MS" not in properties.decode(decode_batch(tokyo.body)[1].properties)
