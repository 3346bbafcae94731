"""Bodies in JSON: whole, but for those that are made to burst."""

from __future__ import annotations

import json
import zlib

from halfmoon.cli.shared.bodies import FOR_EACH_BYTE, BodyBudget
from halfmoon.client.core.consume.pull import unpacked
from halfmoon.limits import FRAME_BYTES_MAX
from halfmoon.wire.codes import COMPRESSED, ZLIB
from halfmoon.wire.record import decode_record, encode_record


def stored(body: bytes, sys_flag: int):
    host = bytes(8)
    record = encode_record(
        topic="t", queue_id=0, queue_offset=0, physical_offset=0, body=body, properties=b"", born_ms=1, born_host=host, store_ms=1,
        store_host=host, sys_flag=sys_flag,
    )  # fmt: skip
    return unpacked(decode_record(record))


def test_bodies_that_are_not_compressed_or_shrink_as_text_does_are_never_left_out():
    text = json.dumps([{"order": number, "state": "paid"} for number in range(2000)]).encode()
    plain, packed, bodies = stored(bytes(4 * 2**20), 0), zlib.compress(text), BodyBudget()
    assert len(text) < FOR_EACH_BYTE * len(packed)

    assert all(bodies.of(plain) == plain.body for _ in range(100))
    assert all(bodies.of(stored(packed, COMPRESSED | ZLIB)) == text for _ in range(1000))


def test_one_body_of_a_frame_is_shown_however_far_it_shrank():
    bodies, large = BodyBudget(), zlib.compress(bytes(FRAME_BYTES_MAX))

    assert bodies.of(stored(large, COMPRESSED | ZLIB)) == bytes(FRAME_BYTES_MAX)
    assert bodies.of(stored(large, COMPRESSED | ZLIB)) is None
    assert "left out" not in str(bodies.facts(stored(b"paid", 0)))
