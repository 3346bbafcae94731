"""Rows over the limit of a message: what stands in their place, and that nothing else of the rows changes."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pyarrow as pa
import pytest

from halfmoon.data.sending.encode import Encoding, Ids, chunks_of
from halfmoon.data.sending.too_large import BODY_BYTES_KEPT, OF_BYTES, OF_SHA256, OF_TOPIC, TooLargeRows, with_dead_letters
from halfmoon.errors import MessageIllegal
from halfmoon.model import RECONSUME_REASON
from halfmoon.wire.properties import decode
from halfmoon.wire.record import decode_batch

IDS = Ids.of("q", 0, 0)
LARGE = bytes(range(256)) * 20


def sent(batch: pa.RecordBatch, **values) -> tuple[list, TooLargeRows]:
    """Return (topic, item, properties) of each message that rows become, in the order of their ids, and the dead letters."""
    dead = TooLargeRows("dead")
    encoding = Encoding(**{"topic": "orders", "message_bytes_max": 2_048, "dead": dead, **values})
    items = [(piece.topic, item) for piece in chunks_of(batch, IDS, 7, encoding) for item in decode_batch(piece.body)]
    found = [(topic, item, decode(item.properties)) for topic, item in items]
    return sorted(found, key=lambda each: each[2]["UNIQ_KEY"]), dead


def test_a_dead_letter_tells_which_row_it_was_and_why():
    batch = pa.RecordBatch.from_pydict({"body": [b"a", LARGE, b"c"], "keys": ["1", "2", "3"], "tags": ["x", "y", "z"]})

    found, dead = sent(batch)

    assert [topic for topic, _, _ in found] == ["orders", "dead", "orders"]
    assert [properties["UNIQ_KEY"] for _, _, properties in found] == [IDS.text(7 + i) for i in range(3)]
    assert dead.count == 1
    _, item, properties = found[1]
    assert LARGE.startswith(item.body)
    assert 500 < len(item.body) < 2_048
    assert (properties["KEYS"], properties["TAGS"]) == ("2", "y")
    assert properties[RECONSUME_REASON].startswith("row 8 of its task is a message of 5")
    assert (properties[OF_TOPIC], properties[OF_BYTES]) == ("orders", "5120")
    assert properties[OF_SHA256] == sha256(LARGE).hexdigest()


def test_the_other_rows_are_sent_as_they_would_be():
    columns = {
        "body": ["a", "b", "c"], "topic": ["t", "u", "t"], "properties": [[("n", "1")], None, [("n", "3")]],
        "delayLevel": pa.array([3, None, None], pa.int32()),
    }  # fmt: skip
    kinds = pa.schema(
        [
            ("body", pa.string()),
            ("topic", pa.string()),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("delayLevel", pa.int32()),
        ]
    )
    plain, _ = sent(pa.RecordBatch.from_pydict(columns, kinds), topic=None, delayed_alone=False)
    columns["body"] = ["a", "b" * 5_000, "c"]

    found, _ = sent(pa.RecordBatch.from_pydict(columns, kinds), topic=None, delayed_alone=False)

    assert [found[0], found[2]] == [plain[0], plain[2]]
    assert (found[1][0], found[1][2][OF_TOPIC]) == ("dead", "u")


def test_a_dead_letter_has_no_place_and_no_delay_of_its_row_and_keeps_its_properties():
    kinds = pa.map_(pa.string(), pa.string())
    batch = pa.RecordBatch.from_pydict({
        "body": [LARGE], "shardingKey": ["k"], "queueId": pa.array([3], pa.int32()), "delayLevel": pa.array([5], pa.int32()),
        "properties": pa.array([[("mine", "yes")]], kinds),
    })  # fmt: skip

    found = with_dead_letters(
        batch, np.array([True]), np.array([6_000]), first=0, limit=4_096, topic="orders", dead=TooLargeRows("dead")
    ).to_pylist()[0]

    assert (found["shardingKey"], found["queueId"], found["delayLevel"], found["topic"]) == (None, None, None, "dead")
    assert dict(found["properties"])["mine"] == "yes"


def test_of_a_large_body_a_bounded_part_is_kept():
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"x" * 500_000], pa.large_binary())})

    found, _ = sent(batch, message_bytes_max=200_000)

    assert len(found[0][1].body) == BODY_BYTES_KEPT


def test_a_row_whose_properties_alone_are_too_long_fails_by_its_number():
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b"], "keys": ["k", "k" * 3_000]})

    with pytest.raises(MessageIllegal, match="row 8 of the task: the message is larger than 2048"):
        sent(batch)
