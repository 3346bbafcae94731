"""Reading given ranges of queues, for jobs that know what they want: ends of queues, offsets by time, and which pulls to send next.

No group makes progress by it. `RangeWindow` decides what is asked and in which order answers are handed on; it holds no bytes.
`halfmoon.client.ranges` has the sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from halfmoon.client.core.ask import ask, call
from halfmoon.client.core.consume.pull import read_request
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.names import check_group, check_topic
from halfmoon.client.core.queue_ends import single_ends
from halfmoon.client.settings import ClientSettings
from halfmoon.effects import Op, gather, sleep
from halfmoon.errors import (
    BadMessage,
    HalfmoonError,
    NetworkError,
    NoPermission,
    NoRoute,
    PeerError,
    QueryNotFound,
    TopicNotFound,
    broker_error,
)
from halfmoon.hot import HEAD, RECORD_BYTES_MIN
from halfmoon.model import MessageQueue
from halfmoon.settings import setting
from halfmoon.wire.bodies import TopicList, TopicStatsTable, from_json, parse_config_text
from halfmoon.wire.codes import BORN_HOST_V6
from halfmoon.wire.command import Command
from halfmoon.wire.headers.admin import GetBrokerConfig
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, SearchOffsetByTimestamp, UpdateConsumerOffset
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.headers.ranges import ReadRange, ReadRangeReply
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver, GetSystemTopicListFromNs
from halfmoon.wire.headers.topic import GetTopicStatsInfo

COUNT_MAX = 32
"""Messages of one pull. Follows maxTransferCountOnMessageInMemory, which bounds every answer of a broker that is not told else."""

ASKS_SIDE_BY_SIDE = 64
"""Small requests under way at once, whatever the number of queues."""

PAUSE_MS, PAUSE_MS_MAX = 100, 5_000
"""Pause after the first failure, doubled with each further one without progress between."""

FOUND, NOT_SUPPORTED, NOT_FOUND, RETRY_IMMEDIATELY, OFFSET_MOVED = 0, 3, 19, 20, 21

QueueEnds = dict[tuple[str, int], tuple[int, int]]
"""(broker name, queue id) → (offset of the oldest message, offset behind the newest)."""

Missing = Callable[[int, int], object]
"""Told of offsets [begin, end) that hold no message any more."""

_SIZE, _QUEUE_OFFSET = Struct(">i").unpack_from, Struct(">q").unpack_from
_QUEUE_OFFSET_AT, _SYS_FLAG_AT, _STORE_MS_AT = 20, 36, 56
_V6_MORE = 12  # bytes that an IPv6 host takes more


@dataclass(frozen=True, kw_only=True)
class RangeSettings(ClientSettings):
    """Settings of a client that reads ranges."""

    request_timeout_ms: int = setting(
        30_000, java="mqClientApiTimeout", why="Timeout of a request; a broker may read from disk.", low=1
    )
    retries_max: int = setting(
        8, why="Consecutive failures, without a message between, before a read fails: 16 s of pauses.", low=0, high=1_000
    )
    half_messages: bool = setting(False, why="Also read half messages and op records, as an audit of transactions does.")
    in_flight: int = setting(16, why="Concurrent pulls of one read, where replies are short.", low=1, high=1_024)


class OffsetsLost(HalfmoonError):
    """Messages that were asked for are not there (any more): expired, or lost with the end of a log.

    ``begin`` and ``end`` are the offsets that are missing, ``min_offset`` and ``max_offset`` what the queue holds.
    """

    def __init__(self, queue: MessageQueue, begin: int, end: int, min_offset: int, max_offset: int) -> None:
        super().__init__(
            f"messages {begin} to {end - 1} of queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name} are gone: "
            f"the queue holds {min_offset} to {max_offset} (not included)"
        )
        self.queue, self.begin, self.end, self.min_offset, self.max_offset = queue, begin, end, min_offset, max_offset


class BrokersAbsent(NetworkError):
    """Brokers that hold queues of a topic left the name servers, so that nobody can say what is in these queues."""

    def __init__(self, topic: str, brokers: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(brokers)} left the name servers with queues of topic {topic}, which cannot be read now: start it again. "
            "A broker that is gone for good is forgotten when its topics are deleted or the name servers are started anew"
        )


# ---------------------------------------------------------------- what is asked next


class Segment(NamedTuple):
    """Offsets [begin, end) of one request."""

    begin: int
    end: int


class RangeWindow:
    """Which parts of [begin, end) are to be asked for, and which answer is handed on next.

    A broker answers a part from its begin on as far as it likes; the rest becomes a part of its own, and is asked for before those
    behind it. Up to ``ahead`` parts of ``step`` offsets are under way. Answers are handed on in the order of the offsets.
    """

    def __init__(self, begin: int, end: int, step: int, ahead: int) -> None:
        self.head = begin
        self.end = end
        self._step, self._ahead = step, ahead
        self._next = begin
        self._left: list[Segment] = []
        self._asked: dict[int, int] = {}

    @property
    def done(self) -> bool:
        """Whether all was handed on."""
        return self.head >= self.end

    def ask(self) -> Segment | None:
        """Return the next part to ask for; None: nothing now."""
        if self._left:  # what an answer left over; its part counted already
            segment = self._left.pop(0)
        elif self._next < self.end and len(self._asked) < self._ahead:
            segment = Segment(self._next, min(self._next + self._step, self.end))
            self._next = segment.end
        else:
            return None
        self._asked[segment.begin] = segment.end
        return segment

    def answered(self, begin: int, reached: int) -> None:
        """Take note that the answer to the part at ``begin`` covers the offsets below ``reached``; the rest is asked for next."""
        end = self._asked[begin]
        if reached < end:
            self._asked[begin] = reached
            self._left.append(Segment(reached, end))
            self._left.sort()

    def handed_on(self, begin: int) -> None:
        """Note that the part at ``begin``, which is the head, was handed on."""
        assert begin == self.head
        self.head = self._asked.pop(begin)

    def again(self, head: int | None = None) -> None:
        """Forget what is under way, and ask anew for everything from the head, or a new one, on."""
        self._asked.clear()
        self._left.clear()
        self._next = self.head = self.head if head is None else head


class Selection(NamedTuple):
    """Which messages a reader wants, as brokers are told: an expression, and its kind, ``TAG`` or ``SQL92``.

    Brokers may send others, too: Apache's are not told, and tags are compared by their hash.
    """

    expression: str
    kind: str = "TAG"


class RangeAnswer(NamedTuple):
    """Reply to a part: it covers the offsets below ``reached``, and its body holds messages unless not ``found``.

    ``ends`` is what the queue holds; ``whole``: the broker says that there is a message for every offset, and that
    the body holds them and nothing else, but for those that a filter left out.
    """

    reached: int
    found: bool
    ends: tuple[int, int]
    whole: bool = False


def pull_request(queue: MessageQueue, segment: Segment) -> PullMessage:
    """Return the pull that asks for a part, or for its begin. The broker does not hold it."""
    count = min(segment.end - segment.begin, COUNT_MAX)
    return read_request(queue, segment.begin, count, broker_name=queue.broker_name)


def range_request(
    queue: MessageQueue, segment: Segment, max_bytes: int, *, half_messages: bool = False, selection: Selection | None = None,
    born: int = 0,
) -> ReadRange:  # fmt: skip
    """Return the request of our own brokers that asks for as much of a part as one answer may hold, of a topic ``born`` then."""
    return ReadRange(
        topic=queue.topic, queue_id=queue.queue_id, begin=segment.begin, end=segment.end, max_bytes=min(max_bytes, 2**31 - 1),
        half_messages=half_messages or None, subscription=selection.expression if selection else None,
        expression_type=selection.kind if selection else None, topic_birth_ms=born or None,
    )  # fmt: skip


def answer_of(reply: Command, segment: Segment) -> RangeAnswer | None:
    """Return what the reply to a pull says; None for a refusal. Raises PeerError when it makes no sense."""
    code = reply.code
    if code not in (FOUND, NOT_FOUND, RETRY_IMMEDIATELY, OFFSET_MOVED):
        return None
    long = "count" in reply.fields
    header: ReadRangeReply | PullMessageReply = reply.header(ReadRangeReply) if long else reply.header(PullMessageReply)
    ends = (header.min_offset, header.max_offset)
    reached = header.next_begin_offset
    if code == FOUND and reached <= segment.begin:
        raise PeerError(f"a pull at {segment.begin} found messages and leads on to {reached}")
    complete = False
    if isinstance(header, ReadRangeReply):
        complete = header.count + (header.passed_over or 0) == reached - segment.begin and reached <= segment.end
        if header.passed_over is not None and not complete and code == FOUND:
            raise PeerError(f"of {reached - segment.begin} offsets {header.count} are sent and {header.passed_over} passed over")
    return RangeAnswer(min(max(reached, segment.begin + 1), segment.end), code == FOUND, ends, complete)


def looked_through(body: memoryview, segment: Segment) -> tuple[list[tuple[int, int]], list[Segment]]:
    """Return where the messages of a part lie in an answer's body, as (from, to), and which of its offsets have none.

    Costs about a third of a microsecond a message; for answers of a few. Raises BadMessage when sizes lead nowhere.
    """
    spans: list[tuple[int, int]] = []
    missing: list[Segment] = []
    at, size, expected = 0, len(body), segment.begin
    while at < size:
        if size - at < RECORD_BYTES_MIN:
            raise BadMessage(f"{size - at} bytes behind the last record")
        size_bytes, offset = _SIZE(body, at)[0], _QUEUE_OFFSET(body, at + _QUEUE_OFFSET_AT)[0]
        end = at + size_bytes
        if size_bytes < RECORD_BYTES_MIN or end > size:
            raise BadMessage(f"a record of {size_bytes} bytes, {size - at} bytes before the end")
        if expected <= offset < segment.end:
            if offset > expected:
                missing.append(Segment(expected, offset))
            expected = offset + 1
            if spans and spans[-1][1] == at:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((at, end))
        at = end
    if expected < segment.end:
        missing.append(Segment(expected, segment.end))
    return spans, missing


def pause_ms(failures: int) -> int:
    """Return how long to wait after so many failures in a row."""
    return int(min(PAUSE_MS * 2 ** min(failures - 1, 16), PAUSE_MS_MAX))


# ---------------------------------------------------------------- small requests


class RangesCore:
    """The small requests as operations. Names are the user's; a namespace is put before them here."""

    def __init__(self, instance: Instance, settings: RangeSettings) -> None:
        self._instance, self.settings = instance, settings
        self.routes = instance.routes
        self.births: dict[tuple[str, str], int] = {}
        """When topics were made, by topic on the wire and broker, as the last `bounds` told; brokers of others tell nothing."""
        self.written: dict[tuple[str, str], dict[int, int]] = {}
        """The ends of the queues that are written, read or not, by topic on the wire and broker, as the last `bounds` told."""

    def wire(self, topic: str) -> str:
        """Return a topic as it is called on the wire. Raises UsageError for what cannot be one."""
        check_topic(topic)
        return self._instance.wire(topic)

    def queues(self, topic: str, *, partial: bool = True) -> Op[list[MessageQueue]]:
        """Return the readable queues of a topic, asked for anew; unless ``partial``, of all its brokers.

        Raises NoRoute: at once for a topic that was never heard of; else it may come back with its broker, and is waited for.
        So is a broker that left, unless ``partial``: raises BrokersAbsent in the end.
        """
        wire = self.wire(topic)
        yield from self._again(lambda: self._refresh(topic, partial=partial), patient=self.routes.known(wire) is not None)
        queues = yield from self.routes.read_queues(wire)
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in sorted(queues)]

    def topics(self) -> Op[list[str]]:
        """Return the names of all topics that the name servers know, those of the protocol and of brokers that left included."""
        request = GetAllTopicListFromNameserver(absent_brokers=True)
        reply = yield from self._again(lambda: self._instance.name_servers.ask(request))
        return sorted(from_json(TopicList, bytes(reply.body)).topic_list)

    def own_topics(self) -> Op[list[str]]:
        """Return the names of the topics that clusters and brokers have for themselves."""
        reply = yield from self._again(lambda: self._instance.name_servers.ask(GetSystemTopicListFromNs()))
        return sorted(from_json(TopicList, bytes(reply.body)).topic_list)

    def bounds(self, topic: str, *, partial: bool = False) -> Op[QueueEnds]:
        """Return the ends of every readable queue of a topic, one request a broker; ``partial``: of brokers that are not absent.

        Raises NoRoute, NetworkError, BrokerError.
        """
        queues = yield from self.queues(topic, partial=partial)
        if partial and (route := self.routes.known(self.wire(topic))) is not None:
            queues = [queue for queue in queues if queue.broker_name not in route.absent]
        brokers = sorted({queue.broker_name for queue in queues})
        tables = yield from side_by_side([self._ends(self.wire(topic), broker) for broker in brokers])
        ends: QueueEnds = {}
        for queue in queues:
            table = tables[brokers.index(queue.broker_name)]
            if queue.queue_id not in table:  # it is only read
                table[queue.queue_id] = yield from self.single(topic, queue.broker_name, queue.queue_id)
            ends[queue.broker_name, queue.queue_id] = table[queue.queue_id]
        return ends

    def offsets_at(self, topic: str, timestamp_ms: int, ends: QueueEnds) -> Op[dict[tuple[str, int], int]]:
        """Return for every queue of ``ends`` the offset of the first message stored at a time or later; behind the last: none is.

        Brokers answer the nearest message, each version in its own way; so the answer is where the search begins, and one or two
        messages beside it are looked at.
        """
        keys = sorted(ends)
        offsets = yield from side_by_side(
            [self._first_since(MessageQueue(self.wire(topic), *key), timestamp_ms, *ends[key]) for key in keys]
        )
        return dict(zip(keys, offsets))

    def committed(self, group: str, topic: str, queues: list[MessageQueue]) -> Op[dict[tuple[str, int], int]]:
        """Return the progress of a group; queues where it has none are left out."""
        check_group(group)
        offsets = yield from side_by_side(
            [self._committed(self._instance.wire(group), self.wire(topic), queue) for queue in queues]
        )
        return {(queue.broker_name, queue.queue_id): offset for queue, offset in zip(queues, offsets) if offset >= 0}

    def commit(self, group: str, topic: str, offsets: Mapping[tuple[str, int], int]) -> Op[None]:
        """Store the progress of a group: offsets of the next messages to read. Raises NetworkError, BrokerError."""
        check_group(group)
        yield from side_by_side(
            [self._commit(group, MessageQueue(self.wire(topic), *key), offsets[key]) for key in sorted(offsets)]
        )

    def address(self, queue: MessageQueue, *, anew: bool = False) -> Op[str]:
        """Return where a queue, its topic called as on the wire, is read. Raises NetworkError, NoRoute."""
        if anew or self.routes.reader(queue.broker_name) is None:
            yield from self.routes.refresh(queue.topic)
        reader = self.routes.reader(queue.broker_name)
        if reader is None:
            raise NetworkError(f"no broker {queue.broker_name} in the route of topic {queue.topic}")
        return reader[0]

    def store_directory(self, queue: MessageQueue) -> Op[str]:
        """Return the setting storePathRootDir of a queue's broker, its topic called as on the wire; empty: it does not say."""
        address = yield from self.address(queue)
        reply = yield from ask(address, GetBrokerConfig(), timeout_ms=self.settings.request_timeout_ms)
        return parse_config_text(reply.body).get("storePathRootDir", "")

    # ------------------------------------------------------------ inside

    def _refresh(self, topic: str, *, partial: bool) -> Op[None]:
        wire = self.wire(topic)
        yield from self.routes.refresh(wire)
        route = self.routes.known(wire)
        if not partial and route is not None and route.absent:
            raise BrokersAbsent(topic, route.absent)

    def _again(self, attempt: Callable[[], Op[Any]], *, patient: bool = True) -> Op[Any]:
        """Carry an operation out, again after failures that may pass, ``patient``: also of a missing route. Raises the last."""
        failures = 0
        while True:
            try:
                return (yield from attempt())
            except HalfmoonError as exc:
                failures += 1
                hopeless = isinstance(exc, (NoPermission, TopicNotFound)) or (isinstance(exc, NoRoute) and not patient)
                if not exc.retry or hopeless or failures > self.settings.retries_max:
                    raise
                yield from sleep(pause_ms(failures))

    def asked(self, queue: MessageQueue, request: Any, body: bytes = b"") -> Op[Command]:
        """Ask the broker of a queue, its topic called as on the wire; again after failures that may pass. Raises the last."""
        failed = False

        def attempt() -> Op[Command]:
            nonlocal failed
            address = yield from self.address(queue, anew=failed)
            failed = True
            return (yield from ask(address, request, body, self.settings.request_timeout_ms))

        reply: Command = yield from self._again(attempt)
        return reply

    def _ends(self, topic: str, broker: str) -> Op[dict[int, tuple[int, int]]]:
        reply = yield from self.asked(MessageQueue(topic, broker, 0), GetTopicStatsInfo(topic=topic))
        table = from_json(TopicStatsTable, bytes(reply.body))
        self.births.pop((topic, broker), None)
        if table.topic_birth_ms is not None:
            self.births[topic, broker] = table.topic_birth_ms
        found = {queue.queue_id: (max(0, ends.min_offset), max(0, ends.max_offset)) for queue, ends in table.offset_table.items()}
        self.written[topic, broker] = {queue_id: high for queue_id, (_, high) in found.items()}
        return found

    def single(self, topic: str, broker: str, queue_id: int) -> Op[tuple[int, int]]:
        """Return the ends of one queue, whether it is in the route or not. Raises NetworkError, BrokerError."""
        queue = MessageQueue(self.wire(topic), broker, queue_id)
        ends = yield from single_ends(lambda request: self.asked(queue, request), queue.topic, [queue.queue_id])
        return ends[queue.queue_id].min_offset, ends[queue.queue_id].max_offset

    def _committed(self, group: str, topic: str, queue: MessageQueue) -> Op[int]:
        request = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue.queue_id)
        try:
            reply = yield from self.asked(MessageQueue(topic, queue.broker_name, queue.queue_id), request)
        except QueryNotFound:
            return -1
        return reply.header(OffsetReply).offset

    def _commit(self, group: str, queue: MessageQueue, offset: int) -> Op[None]:
        request = UpdateConsumerOffset(
            consumer_group=self._instance.wire(group), topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        yield from self.asked(queue, request)

    def _first_since(self, queue: MessageQueue, timestamp_ms: int, low: int, high: int) -> Op[int]:
        """Search [low, high), from the broker's answer on in steps that double, then by halves."""
        if low >= high:
            return high
        request = SearchOffsetByTimestamp(topic=queue.topic, queue_id=queue.queue_id, timestamp=max(0, timestamp_ms))
        near = (yield from self.asked(queue, request)).header(OffsetReply).offset
        near, step = min(max(near, low), high - 1), 1
        if (yield from self._store_ms(queue, near)) >= timestamp_ms:
            high = near
            while high > low and (yield from self._store_ms(queue, max(low, high - step))) >= timestamp_ms:
                high, step = max(low, high - step), step * 2
            low = max(low, high - step)
        else:
            low = near + 1
            while low < high and (yield from self._store_ms(queue, min(low + step, high) - 1)) < timestamp_ms:
                low, step = min(low + step, high), step * 2
            high = min(low + step, high)
        while low < high:
            middle = (low + high) // 2
            if (yield from self._store_ms(queue, middle)) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _store_ms(self, queue: MessageQueue, offset: int) -> Op[int]:
        """Return when the message at an offset was stored; before all times where there is none any more."""
        segment = Segment(offset, offset + 1)
        reply = yield from self._ask_pull(queue, segment)
        answer = answer_of(reply, segment)
        if answer is None:
            raise broker_error(reply.code, reply.remark)
        if not answer.found or len(reply.body) < HEAD.size:
            return -1
        body = bytes(reply.body)
        at = _STORE_MS_AT + (_V6_MORE if _SIZE(body, _SYS_FLAG_AT)[0] & BORN_HOST_V6 else 0)
        return int.from_bytes(body[at : at + 8], "big")

    def _ask_pull(self, queue: MessageQueue, segment: Segment) -> Op[Command]:
        address, timeout_ms = (yield from self.address(queue)), self.settings.request_timeout_ms
        if self.settings.half_messages:  # which our own brokers give to this request alone
            reply = yield from call(address, range_request(queue, segment, 1, half_messages=True), b"", timeout_ms)
            if reply.code != NOT_SUPPORTED:
                return reply
        return (yield from call(address, pull_request(queue, segment), b"", timeout_ms))


def side_by_side(operations: list[Generator[Any, Any, Any]]) -> Op[list[Any]]:
    """Run operations side by side, a bounded number at once; return their results. Raises the first error."""
    results: list[Any] = []
    for at in range(0, len(operations), ASKS_SIDE_BY_SIDE):
        outcomes = yield from gather(operations[at : at + ASKS_SIDE_BY_SIDE])
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            results.append(outcome)
    return results
