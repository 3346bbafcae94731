"""The compiled reader beside the way that all frames take in Python: what it takes is stored, decided and answered as the general
decoder, the gate and the decisions would.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from halfmoon.columns import reading
from halfmoon.wire.codes import JSON, ROCKETMQ, TRANSACTION_PREPARED
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.transaction import EndTransaction
from tests.broker.half import half_properties
from tests.broker.talk import Talk, send_header
from tests.columns.conftest import native
from tests.columns.test_twins import damaged, headers, item

ROOM = {"commit_log_file_bytes": 64 * 1024 * 1024, "queue_file_bytes": 4_000_000}


class Both:
    """Two brokers that are sent the same: one whose reader takes what it can, and one whose reader takes nothing."""

    def __init__(self, root) -> None:
        self.talks = [Talk(root / name, store=ROOM) for name in ("compiled", "general")]
        self.talks[1].broker.gate.reader = reading.Reader(b"", 0)
        self.peer = self.taken = 0
        for talk in self.talks:
            for topic in ("T", "\xe9", "U"):
                talk.ask(send_header(topic, queue_id=1))
                talk.ask(send_header(topic, queue_id=1, properties=half_properties(), sys_flag=TRANSACTION_PREPARED))
                talk.ask(send_header(topic, queue_id=1, properties="WAIT\x01true", batch=True), item(b"b", b"K\x01v\x02", 0))
        self.same()

    def feed(self, data: bytes) -> bytes:
        """Send the same bytes by a new connection; compare what is stored and answered, and return the records."""
        self.peer += 1
        ends = [talk.broker.store.end_offset for talk in self.talks]
        assert ends[0] == ends[1]
        for talk in self.talks:
            talk.connect(1000 + self.peer)
            talk.feed(1000 + self.peer, data)
            talk.turn()
        stored = self.same(ends[0])
        for talk in self.talks:
            talk.lose(1000 + self.peer)
        return stored

    def same(self, since: int = 0) -> bytes:
        """Compare the logs behind an offset, which are returned, and what the last connection was told."""
        logs, told, ends = [], [], []
        for talk in self.talks:
            store = talk.broker.store
            logs.append(bytes(store.log.segments.view(since, store.end_offset - since)) if store.end_offset > since else b"")
            replies = talk.received.get(1000 + self.peer, [])
            told.append(sorted((each.opaque, each.code, each.remark or "", sorted(each.fields.items())) for each in replies))
            ends.append((talk.broker.transactions.index.pending_count, 1000 + self.peer in talk.closed))
        assert logs[0] == logs[1]
        assert told[0] == told[1]
        assert ends[0] == ends[1]
        return logs[0]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    native()
    return Both(tmp_path_factory.mktemp("both"))


def framed(serialization: int, header: bytes, body: bytes) -> bytes:
    size = (4 + len(header) + len(body)).to_bytes(4, "big")
    return size + (serialization << 24 | len(header)).to_bytes(4, "big") + header + body


def ordinary(data: bytes) -> bool:
    """Whether no number in it has a form that one of the decoders may leave to the other."""
    return not re.search(rb"\d[.eE][+\d-]|\d{19}", data)


@st.composite
def requests(draw):
    """Serialisation, header and body of one send or decision, perhaps damaged."""
    code = draw(st.sampled_from([310, 310, 310, 320, 37]))
    body = item(b"b", b"K\x01v\x02", 3) * draw(st.integers(1, 3)) if code == 320 else draw(st.binary(max_size=20))
    serialization, header = draw(headers(code, body))
    return serialization, damaged(header, draw), body


@given(requests())
def test_what_is_taken_from_the_bytes_is_stored_and_answered_as_what_is_decoded(both: Both, request):
    serialization, header, body = request
    both.feed(framed(serialization, header, body))
    event(f"{len(both.talks[0].broker.gate.reader)} queues are open")


NO_HEADERS = [(JSON, b"{no header"), (ROCKETMQ, b"\x01\x36" + bytes(18) + b"\x09ab"), (9, b"{}"), (JSON, b'{"code":310,"opaque":')]


@example(asked=[JSON, NO_HEADERS[0], ROCKETMQ])
@example(asked=[NO_HEADERS[0], *[JSON] * 99])
@given(st.lists(st.sampled_from([JSON, ROCKETMQ, *NO_HEADERS]), max_size=100))
def test_sends_around_headers_that_are_none_are_stored_and_answered_alike(both: Both, asked):
    frames = []
    for number, each in enumerate(asked):
        if isinstance(each, tuple):
            frames.append(framed(*each, b""))
        else:
            command = request_command(send_header("T", queue_id=1), b"around", opaque=number, serialization=each)
            frames.append(encode(command))
    stored = both.feed(b"".join(frames))
    sends = sum(isinstance(each, int) for each in asked)

    assert stored.count(b"around") == len(both.talks[1].received.get(1000 + both.peer, [])) == sends


@pytest.mark.parametrize(
    "number", ["1.0", "1e2", '"1.0"', "9" * 25, "true", '"tRuE"', '"0"', '"-0"', '"+1"', '"yes"', '""', "null"]
)
@pytest.mark.parametrize("field", ["h", "m", "j"])
def test_values_in_other_forms_are_read_alike(both: Both, number: str, field: str):
    given = {"b": '"T"', "e": "1", "f": "0", "g": "1700000000000", "h": "0", "i": '""', field: number}
    fields = ",".join(f'"{name}":{value}' for name, value in given.items())
    header = f'{{"code":310,"extFields":{{{fields}}},"flag":0,"opaque":1,"version":409,"language":"JAVA"}}'.encode()
    both.feed(framed(JSON, header, b"x"))


@example(cuts=[3, 9], decisions=[8, 12, 0])
@given(st.lists(st.integers(0, 3000), max_size=3), st.lists(st.sampled_from([8, 12, 0]), min_size=1, max_size=4))
def test_half_messages_of_a_turn_are_stored_and_decided_alike(both: Both, cuts, decisions):
    header = send_header("T", queue_id=1, properties=half_properties(), sys_flag=TRANSACTION_PREPARED)
    halves = b"".join(encode(request_command(header, b"%d" % number, opaque=number)) for number in range(len(decisions)))
    first = both.talks[0].broker.transactions.index.end
    both.feed(halves)
    frames = []
    for number, decision in enumerate(decisions):
        half = both.talks[0].broker.transactions.index.half(first + number)
        ending = EndTransaction(
            producer_group="pg", tran_state_table_offset=first + number, commit_log_offset=half.physical_offset,
            commit_or_rollback=decision, msg_id="u", transaction_id="u",
        )  # fmt: skip
        frames.append(encode(request_command(ending, opaque=number)))
    both.feed(b"".join(frames))
