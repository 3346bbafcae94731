"""Reads of ranges (31040): what a pull may bring in hundreds of answers, in one. For jobs that know which offsets they want.

Who may read what is as with pulls, but that an audit of transactions may ask for half messages and op records. Never waits for
messages, knows no group and no progress.
"""

from __future__ import annotations

from struct import Struct

from halfmoon.broker.acks import reply_to
from halfmoon.broker.pull import ANSWER_BYTES_MAX, CODES, EMPTY_QUEUE, Pulls
from halfmoon.broker.request import Reply, Request
from halfmoon.errors import BrokerError, InvalidParameter
from halfmoon.store.store import Found, FoundStatus, Store
from halfmoon.wire.command import encode_header
from halfmoon.wire.headers.ranges import ReadRange, ReadRangeReply
from halfmoon.wire.peer import Peers

RANGE_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one answer: half of what a frame may have, and a record may be longer than what was asked for."""

_PREFIX = Struct(">ii")


class RangeReads:
    """The service that answers 31040."""

    def __init__(self, store: Store, pulls: Pulls, peers: Peers) -> None:
        self._store, self._pulls, self._peers = store, pulls, peers

    def read(self, request: Request) -> None:
        """Answer with records from the log itself. Raises BrokerError."""
        header = request.header(ReadRange)
        if not 0 <= header.begin < header.end or header.max_bytes < 1:
            raise InvalidParameter(f"no range: offsets {header.begin} to {header.end}, {header.max_bytes} bytes")
        topic = self._pulls.readable(header.topic, half_messages=header.half_messages is True)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise BrokerError(f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has {topic.read_queue_nums}")
        self._answer(request, self._found(header, request.peer.out_bytes))

    def _found(self, header: ReadRange, out_bytes: int) -> Found:
        room = min(header.max_bytes, RANGE_BYTES_MAX) if out_bytes < ANSWER_BYTES_MAX else 1
        found = self._store.ranges.read(header.topic, header.queue_id, header.begin, header.end, room)
        if found is None:
            count = min(header.end - header.begin, 1024) if room > 1 else 1
            found = self._store.read(header.topic, header.queue_id, header.begin, count, None, room)
        return EMPTY_QUEUE if found.status is FoundStatus.NO_MATCHED_LOGIC_QUEUE else found

    def _answer(self, request: Request, found: Found) -> None:
        command, peer = request.command, request.peer
        if command.is_oneway or peer.closing:
            return
        reply = ReadRangeReply(
            next_begin_offset=found.next_offset, min_offset=found.min_offset, max_offset=found.max_offset, count=found.count
        )  # fmt: skip
        code = CODES.get(found.status, 19)  # an empty queue: its end is where one asked
        head = encode_header(reply_to(command.opaque, command.serialization, Reply(code, found.status.name, reply)))
        peer.out_bytes += found.size_bytes
        prefix = _PREFIX.pack(4 + len(head) + found.size_bytes, command.serialization << 24 | len(head))
        self._peers.answers(peer, [prefix + head, *found.pieces])
