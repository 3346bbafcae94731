"""Reads of offset ranges (31040), and their sizes (31041): for jobs that know which offsets they want.

One reply holds what takes pulls hundreds. Permissions are those of pulls; in addition an audit of transactions may ask for half
messages and op records. Never waits for messages, knows no group and no progress.
"""

from __future__ import annotations

from halfmoon.broker.context import Context
from halfmoon.broker.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.broker.pull.filters import Wanted
from halfmoon.broker.pull.pulls import CODES, EMPTY_QUEUE, Pulls
from halfmoon.broker.request import Handlers, Reply, Request, reply_head
from halfmoon.broker.service import Service
from halfmoon.broker.topics import check_birth
from halfmoon.errors import BrokerError, InvalidParameter
from halfmoon.store.store import ReadResult, ReadStatus
from halfmoon.wire.headers.ranges import STRETCHES_MAX, ReadRange, ReadRangeReply, Stretches, WeighRanges, Weights
from halfmoon.wire.json import to_json

RANGE_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one reply: half of what a frame may have, for a record may be longer than what was asked for."""

WITHOUT_TAG_CODES = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC})
"""Topics whose queue entries do not hold a tag's hash where others do."""


class RangeReads(Service):
    """The service that answers 31040 and 31041."""

    def __init__(self, context: Context, pulls: Pulls) -> None:
        self._store, self._pulls, self._peers = context.store, pulls, context.peers

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            ReadRange: self.read,
            WeighRanges: self.weigh,
        }

    def read(self, request: Request) -> None:
        """Reply with records, straight from the log. Raises BrokerError."""
        header = request.header(ReadRange)
        if not 0 <= header.begin < header.end or header.max_bytes < 1:
            raise InvalidParameter(f"not a range: offsets {header.begin} to {header.end}, {header.max_bytes} bytes")
        topic = self._pulls.readable(header.topic, half_messages=header.half_messages is True)
        check_birth(header.topic, topic.birth_ms, header.topic_birth_ms)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise BrokerError(f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has {topic.read_queue_nums}")
        wanted = self._wanted(header)
        result = self._find(header, request.peer.out_bytes, wanted)
        passed_over = None
        if wanted is not None and result.status is ReadStatus.FOUND:
            passed_over = result.next_offset - header.begin - result.count
        self._answer(request, result, passed_over)

    def weigh(self, request: Request) -> Reply:
        """Return about how many bytes ranges have. Raises BrokerError."""
        header, stretches = request.header(WeighRanges), request.body(Stretches).stretches
        topic = self._pulls.readable(header.topic, half_messages=header.half_messages is True)
        if len(stretches) > STRETCHES_MAX:
            raise InvalidParameter(f"{len(stretches)} ranges in one request, more than {STRETCHES_MAX}")
        for queue_id, begin, end in ((stretch.queue_id, stretch.begin, stretch.end) for stretch in stretches):
            if not 0 <= begin <= end or not 0 <= queue_id < topic.read_queue_nums:
                raise InvalidParameter(f"not a range: queue {queue_id}, offsets {begin} to {end}")
        weigh = self._store.ranges.weigh
        return Reply(body=to_json(Weights([weigh(header.topic, s.queue_id, s.begin, s.end) for s in stretches])))

    def _wanted(self, header: ReadRange) -> Wanted:
        """Return what the filter selects; None: everything, or the topic's entries hold no tag hashes. Raises BrokerError."""
        if header.subscription is None:
            return None
        wanted = self._pulls.filters.of_expression(header.topic, header.subscription, header.expression_type)
        return None if isinstance(wanted, frozenset) and header.topic in WITHOUT_TAG_CODES else wanted

    def _find(self, header: ReadRange, out_bytes: int, wanted: Wanted) -> ReadResult:
        room = min(header.max_bytes, RANGE_BYTES_MAX) if out_bytes < self._pulls.answer_bytes_max else 1
        result = self._store.ranges.read(header.topic, header.queue_id, header.begin, header.end, room, wanted)
        return EMPTY_QUEUE if result.status is ReadStatus.NO_MATCHED_LOGIC_QUEUE else result

    def _answer(self, request: Request, result: ReadResult, passed_over: int | None) -> None:
        command, peer = request.command, request.peer
        if command.is_oneway or peer.closing:
            return
        reply = ReadRangeReply(
            next_begin_offset=result.next_offset, min_offset=result.min_offset, max_offset=result.max_offset, count=result.count,
            passed_over=passed_over,
        )  # fmt: skip
        code = CODES.get(result.status, 19)  # 19 for an empty queue: the range begins at its end
        head = reply_head(command.opaque, command.serialization, Reply(code, result.status.name, reply), result.size_bytes)
        peer.out_bytes += result.size_bytes
        self._peers.answers(peer, [head, *result.pieces])
