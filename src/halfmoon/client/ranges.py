"""The blocking client that reads given ranges of queues as raw records: for jobs of many processes, with no group and no progress.

Small questions go over the background loop; reading does not: it has connections of its own, and the thread that
reads receives the bodies of answers as they came.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, Unpack

from halfmoon.client.anonymous import AnonymousClient, of_process
from halfmoon.client.blocking import Blocking
from halfmoon.client.constructors.options import RangeArguments
from halfmoon.client.core.ranges import (
    COUNT_MAX,
    NOT_SUPPORTED,
    BrokersAbsent,
    Missing,
    OffsetsLost,
    QueueEnds,
    RangeAnswer,
    RangesCore,
    RangeSettings,
    RangeWindow,
    Segment,
    Selection,
    answer_of,
    looked_through,
    pause_ms,
    pull_request,
    range_request,
)
from halfmoon.client.core.weighing import Weighed, weigh
from halfmoon.client.settings import settings_of
from halfmoon.errors import (
    BrokerError,
    HalfmoonError,
    NetworkError,
    NoPermission,
    TopicNotFound,
    TopicRecreated,
    UsageError,
    broker_error,
)
from halfmoon.model import MessageQueue
from halfmoon.runtime.connections.blocking_connections import BlockingConnections, SocketConnection
from halfmoon.runtime.drivers.threads import BackgroundLoop, background
from halfmoon.shown.names import queue_name
from halfmoon.wire.headers.ranges import ReadRange

MAX_BYTES = 4 * 1024 * 1024
CONNECTIONS_MAX = 1_000
"""Reads of one client at a time."""

BEHIND_TRIES = 4
"""How often a queue is looked at that ends before the range does, until its messages count as lost: 1.5 s."""

NO_QUEUE = 1
"""Reply code of a broker that has no queue of that number any more, among other things."""

MAY_NOT_FILTER = (1, 23)
"""Reply codes of a broker that filters nothing by SQL92, or does not take the expression."""

T = TypeVar("T")

log = logging.getLogger("halfmoon.client")

__all__ = ["MAX_BYTES", "BrokersAbsent", "OffsetsLost", "RangeSettings", "Ranges", "Selection", "Weighed", "checked", "ranges"]


class BrokerBehind(NetworkError):
    """The broker does not know the end of the range yet, or any more."""


class Ranges(Blocking):
    """Reads ranges of queues.

    ::

        with Ranges(nameserver="127.0.0.1:9876") as client:
            for (broker, queue), (begin, end) in client.bounds("orders").items():
                for raw in client.read(broker, "orders", queue, begin, end):
                    records = decode_records(raw)

    Settings are those of `RangeSettings`, by keyword. Safe to use from many threads. `ranges` gives the one of a process.
    """

    _client: AnonymousClient[RangeSettings]

    def __init__(self, settings: RangeSettings | None = None, **values: Unpack[RangeArguments]) -> None:
        loop: BackgroundLoop = background()
        super().__init__(loop.plain(AnonymousClient, settings or settings_of(RangeSettings, values)), loop)
        self.core = RangesCore(self._client.instance, self._client.settings)
        client = self._client
        self.links = BlockingConnections(
            serialization=client.serialization, signs=client.signs, tls=client.tls, connections_max=CONNECTIONS_MAX, ahead_bytes=0
        )
        """The connections on which answers come ahead of each other, and with large bodies."""
        self._foreign_brokers: set[str] = set()
        """Addresses of brokers that know no request of Halfmoon's own."""

    def close(self) -> None:
        """Close all connections. Closing again does nothing."""
        self.links.close()
        super().close()

    def topics(self) -> list[str]:
        """Return the names of all topics that the name servers know, those of the protocol and of brokers that left included."""
        return self.run(self.core.topics())

    def own_topics(self) -> list[str]:
        """Return the names of the topics that clusters and brokers have for themselves."""
        return self.run(self.core.own_topics())

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, from a fresh route. Raises NoRoute where there is none (any more)."""
        return self.run(self.core.queues(topic))

    def bounds(self, topic: str, *, partial: bool = False) -> QueueEnds:
        """Return (broker name, queue id) → (offset of the oldest message, offset behind the newest that readers may see).

        One request a broker, side by side. Raises NoRoute, NetworkError, BrokerError. An answer has all brokers that our name
        servers know to hold the topic, or there is none; ``partial``: brokers that left are left out, and `absent` names them.
        """
        return self.run(self.core.bounds(topic, partial=partial))

    def absent(self, topic: str) -> tuple[str, ...]:
        """Return the brokers that left with queues of a topic, as of the last `bounds`. Sends no request.

        Our name servers know them from when they were started; others know none.
        """
        route = self.core.routes.known(self.core.wire(topic))
        return () if route is None else route.absent

    def end_of(self, topic: str, broker: str, queue: int) -> int:
        """Return the offset behind the newest message of a queue, also of one that is not read any more."""
        return self.run(self.core.single(topic, broker, queue))[1]

    def written_end(self, topic: str, broker: str, queue: int) -> int | None:
        """Return the offset behind the newest message of a queue, read or not, as of the last `bounds`. Sends no request.

        None: nothing is written to it.
        """
        return self.core.written.get((self.core.wire(topic), broker), {}).get(queue)

    def births(self, topic: str) -> dict[str, int]:
        """Return when a topic was created at each broker, ms since the epoch, as of the last `bounds`. Sends no request.

        A topic that is deleted and made again has another birth. Brokers that are not ours tell none, nor do ours of topics that
        another broker made.
        """
        wire = self.core.wire(topic)
        return {broker: birth for (name, broker), birth in self.core.births.items() if name == wire}

    def offsets_at(self, topic: str, timestamp_ms: int, ends: QueueEnds | None = None) -> dict[tuple[str, int], int]:
        """Return for every queue the offset of the first message stored at a time (ms since the epoch) or later.

        Where there is none, that is the end of the queue. ``ends`` are `bounds` known already. A few requests a queue.
        """
        return self.run(self.core.offsets_at(topic, timestamp_ms, self.bounds(topic) if ends is None else ends))

    def weigh(self, topic: str, ranges: QueueEnds) -> Weighed:
        """Return about how many bytes ranges have: for each the bytes of its parts, which have equal numbers of offsets.

        ``ranges`` are offsets [begin, end) by broker name and queue id. It takes a few requests a broker, however long they are;
        brokers that are not ours are asked for a few messages of each queue.
        """
        return self.run(weigh(self.core, topic, ranges))

    def committed(self, group: str, topic: str) -> dict[tuple[str, int], int]:
        """Return the progress of a group in a topic; queues where it has none are left out."""
        return self.run(self.core.committed(group, topic, self.queues(topic)))

    def commit(self, group: str, topic: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Store the progress of a group: for each queue the offset of the next message to read."""
        self.run(self.core.commit(group, topic, offsets))

    def read(
        self,
        broker: str,
        topic: str,
        queue: int,
        begin: int,
        end: int,
        max_bytes: int = MAX_BYTES,
        *,
        missing: Missing | None = None,
        selection: Selection | None = None,
        born: int = 0,
    ) -> Iterator[bytes]:
        """Yield the records of [begin, end) of a queue as stored, back to back, in order, each once.

        Pieces are whole records, about ``max_bytes`` of them. What is in no piece was reported: ``missing(begin, end)`` is told
        of offsets that hold no message, in order; without it they are an error. Failures that may pass (a broker that restarts, a
        cut connection, a route that changed) are tried again, without a record lost or repeated.

        ``selection`` has our own brokers leave out what it does not select, where they can: what comes is to be looked at again.
        Offsets of what is left out are not missing.

        ``born`` is when the topic was created there (`births`): of one created since, all is missing. 0: of any.

        Raises:
            OffsetsLost: offsets hold no message and ``missing`` is None.
            TopicNotFound: the broker has no such topic any more. TopicRecreated: it has another one, and ``missing`` is None.
            NoPermission: it may not be read.
            NoRoute: name servers had none for too long.
            NetworkError, BrokerError: it failed too often, or for good.
            BadMessage: the broker sent what are no records.
        """
        if not 0 <= begin <= end or queue < 0 or max_bytes < 1:
            raise UsageError(f"not a range: queue {queue}, offsets {begin} to {end}, {max_bytes} bytes at once")
        wire = MessageQueue(self.on_wire(topic), broker, queue)
        return _Reading(self, wire, Segment(begin, end), max_bytes, missing, selection, born).pieces()

    def store_directory(self, queue: MessageQueue) -> str:
        """Return where the broker of a queue, its topic called as on the wire, says that its store is; empty: it does not say.

        The path is one of the broker's machine. Raises NetworkError, NoRoute; BrokerError, NoPermission: it does not tell us.
        """
        return self.run(self.core.store_directory(queue))

    def record(self, queue: MessageQueue, offset: int) -> bytes:
        """Return the record at an offset of a queue whose topic is called as on the wire. Raises as `read` does."""
        return b"".join(_Reading(self, queue, Segment(offset, offset + 1), MAX_BYTES, None, None).pieces())

    def on_wire(self, topic: str) -> str:
        """Return a topic as brokers call it: with the namespace. Raises UsageError for what cannot be one."""
        return self.core.wire(topic)


class _Reading:
    """One read of one range."""

    def __init__(
        self, client: Ranges, queue: MessageQueue, segment: Segment, max_bytes: int, missing: Missing | None,
        selection: Selection | None, born: int = 0,
    ) -> None:  # fmt: skip
        self._client, self._queue, self._max_bytes, self._missing = client, queue, max_bytes, missing
        self._selection, self._born = selection, born
        begin, end = segment
        self._settings: RangeSettings = client.settings
        self._window = RangeWindow(begin, end, end - begin, 1)
        self._short = False
        self._link: SocketConnection | None = None
        self._asked: dict[int, Segment] = {}
        self._held: dict[int, tuple[RangeAnswer, bytes]] = {}
        self._failures = 0

    def pieces(self) -> Iterator[bytes]:
        """Yield what is asked for, piece by piece."""
        bodies: list[bytes] = []
        size = 0
        try:
            while not self._window.done:
                for body in self._step():
                    if bodies and size + len(body) > self._max_bytes:
                        yield bodies[0] if len(bodies) == 1 else b"".join(bodies)
                        bodies, size = [], 0
                    bodies.append(body)
                    size += len(body)
            if bodies:
                yield bodies[0] if len(bodies) == 1 else b"".join(bodies)
        finally:
            self._leave()

    def _step(self) -> list[bytes]:
        """Send what may be asked now, take one answer, and return the bodies whose turn has come."""
        try:
            link = self._link
            if link is None:
                link = self._link = self._connected()
                self._suit(link.address)
            self._send(link)
            reply = link.head()
            segment = self._asked.pop(reply.opaque, None)
            answer = None if segment is None else answer_of(reply, segment)
            if answer is not None and segment is not None:
                self._window.answered(segment.begin, answer.reached)
                self._send(link)  # before the body, so that the broker has something to do meanwhile
            body = link.body()
            if segment is None:  # a reply to no request of ours
                return []
            if answer is None:
                if reply.code == NOT_SUPPORTED and not self._short:
                    self._client._foreign_brokers.add(link.address)
                    self._suit(link.address)
                    return []
                return self._refused(broker_error(reply.code, reply.remark, link.address))
            self._held[segment.begin] = (answer, body)
            return self._in_order()
        except HalfmoonError as exc:
            self._failed(exc)
            return []

    def _send(self, link: SocketConnection) -> None:
        """Ask for what may be asked now; short answers are asked for by the dozen, since each write costs more than a request."""
        if self._short and len(self._asked) > self._settings.in_flight // 2:
            return
        frames: list[bytes] = []
        while (segment := self._window.ask()) is not None:
            request: Any = pull_request(self._queue, segment) if self._short else self._long(segment)
            opaque, frame = self._client.links.frame(link.address, request)
            self._asked[opaque] = segment
            frames.append(frame)
        if frames:
            link.send(b"".join(frames))

    def _long(self, segment: Segment) -> ReadRange:
        audit = self._settings.half_messages
        return range_request(self._queue, segment, self._max_bytes, half_messages=audit, selection=self._selection, born=self._born)

    def _refused(self, refusal: BrokerError) -> list[bytes]:
        """Handle a refusal: read everything of a broker whose settings forbid it to filter; other refusals are errors.

        Of a queue that is not read any more, and of a topic that was made again, all offsets are missing.
        """
        if isinstance(refusal, TopicRecreated) or (refusal.code == NO_QUEUE and self._removed()):
            log.warning("a queue is not read any more: queue=%s reason=%s", queue_name(self._queue), refusal)
            rest = Segment(self._window.head, self._window.end)
            if self._missing is None:
                raise refusal
            self._drop()
            self._missing(*rest)
            self._window.again(rest.end)
            return []
        if self._selection is None or self._short or refusal.code not in MAY_NOT_FILTER:
            raise refusal
        log.info("the broker does not filter: queue=%s reason=%s", queue_name(self._queue), refusal)
        self._selection = None
        self._drop()
        return []

    def _removed(self) -> bool:
        """Whether the topic is read at the broker, and this queue of it is not, as name servers know now."""
        core = self._client.core
        self._client.run(core.routes.refresh(self._queue.topic))
        queues = self._client.run(core.routes.read_queues(self._queue.topic))
        return self._queue not in queues and any(queue.broker_name == self._queue.broker_name for queue in queues)

    def _suit(self, address: str) -> None:
        """Ask as the broker understands it: by long answers, one after the other, or by many pulls at once."""
        self._short = address in self._client._foreign_brokers
        window = self._window
        step, ahead = (COUNT_MAX, self._settings.in_flight) if self._short else (window.end - window.head, 1)
        self._window = RangeWindow(window.head, window.end, step, ahead)

    def _in_order(self) -> list[bytes]:
        """Take out of what is held what begins at the head, and so on."""
        bodies: list[bytes] = []
        window = self._window
        while (held := self._held.pop(window.head, None)) is not None:
            answer, body = held
            segment = Segment(window.head, answer.reached)
            if not answer.found:
                self._skip(answer)
                break
            bodies += self._checked(segment, answer, body)
            window.handed_on(segment.begin)
            self._failures = 0
        return bodies

    def _skip(self, answer: RangeAnswer) -> None:
        """Go on behind offsets that are not there, all of them at once, and forget what was asked of them."""
        window, (low, high) = self._window, answer.ends
        if window.head >= high:
            to = window.end
            if self._failures < min(BEHIND_TRIES, self._settings.retries_max):  # a slave that stands in for its master may lag
                raise BrokerBehind(f"queue {self._queue.queue_id} of {self._queue.topic} ends at {high}, before {window.head}")
        else:
            to = min(max(answer.reached, low), window.end)
        self._tell(Segment(window.head, to), answer)
        self._asked.clear()
        self._held.clear()
        window.again(to)

    def _checked(self, segment: Segment, answer: RangeAnswer, body: bytes) -> list[bytes]:
        """Return the records of a part in an answer's body; nearly always that is the body itself."""
        if answer.whole:
            return [body] if body else []
        spans, missing = looked_through(memoryview(body), segment)
        for gap in missing:
            self._tell(gap, answer)
        return [body] if spans == [(0, len(body))] else [body[begin:end] for begin, end in spans]

    def _tell(self, gap: Segment, answer: RangeAnswer) -> None:
        if self._missing is None:
            raise OffsetsLost(self._queue, *gap, *answer.ends)
        self._missing(*gap)

    # ------------------------------------------------------------ failures

    def _connected(self) -> SocketConnection:
        client = self._client
        address = client.run(client.core.address(self._queue, anew=self._failures > 0))
        if (link := client.links.take(address, self._settings.request_timeout_ms)) is None:
            raise NetworkError(f"closed, or more than {CONNECTIONS_MAX} reads at a time", address)
        return link

    def _failed(self, exc: HalfmoonError) -> None:
        """Drop the connection and what is under way; pause before the next attempt. Raises what will not pass."""
        self._drop()
        self._failures += 1
        if not exc.retry or isinstance(exc, (NoPermission, TopicNotFound)) or self._failures > self._settings.retries_max:
            raise exc
        log.info("read failed: queue=%s offset=%d reason=%s", queue_name(self._queue), self._window.head, exc)
        time.sleep(pause_ms(self._failures) / 1000)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._client.links.drop(link)
        self._asked.clear()
        self._held.clear()
        self._window.again()

    def _leave(self) -> None:
        """End the read, and keep the connection if nothing is under way on it."""
        link, self._link = self._link, None
        if link is not None and not self._asked:
            self._client.links.give(link)
        elif link is not None:
            self._client.links.drop(link)


def checked(**values: Unpack[RangeArguments]) -> RangeSettings:
    """Return these settings without a client. Raises SettingError, NoNameServer."""
    return settings_of(RangeSettings, values)


def ranges(**values: Unpack[RangeArguments]) -> Ranges:
    """Return the process's started client with these settings of `RangeSettings`; made at the first call, kept to the end.

    A forked child gets one of its own. Raises SettingError, NoNameServer.
    """
    return of_process(Ranges, settings_of(RangeSettings, values))
