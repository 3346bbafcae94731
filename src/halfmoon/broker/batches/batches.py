"""Batch transactions: the messages of many tasks become visible once, whole and in order, or never. The service of one broker.

A broker is *participant* for the messages that it holds and *coordinator* for the ids assigned to it; often both. The parts:
`records` (what is written), `state` (what is known), `coordinator` (decisions), `recovery` (participants ask about attempts in
doubt), `publishing` (in order, each message once), `query` (for operators).

A crash undoes nothing that a reply has said: votes, decisions, promises to give an attempt up, and applied batches are on the
device before the reply, in any flush mode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from halfmoon.broker.batches.coordinator import Coordinator
from halfmoon.broker.batches.publishing import GIVEN_FLAGS, Publishing, drafts_of, may_wait
from halfmoon.broker.batches.query import Listing
from halfmoon.broker.batches.records import (
    PIECES,
    Applied,
    Dropped,
    Finished,
    Forgotten,
    Journal,
    Snapshot,
    Step,
    StoredPiece,
    Voted,
)
from halfmoon.broker.batches.recovery import BatchRecovery
from halfmoon.broker.batches.state import Application, AttemptState, Stream, Streams
from halfmoon.broker.context import Context
from halfmoon.broker.delay.delay import Delays
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.names import BATCH_TOPIC, FORBIDDEN_TO_SEND, TEMPLATE_TOPIC, check_topic
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.send.pending_replies import refused
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.service import Service
from halfmoon.effects import Op
from halfmoon.errors import BrokerError, CorruptRecord, InvalidParameter, MessageRefused, NoPermission, SystemBusy
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.metrics import Samples
from halfmoon.wire.bodies.batches import ATTEMPTS_MAX, BATCH_BODY, ONE_RUN, BatchPromise, BatchPromises, piece_checksum
from halfmoon.wire.headers.batch import (
    AbortBatch,
    AbortBatchReply,
    ApplyBatch,
    ApplyBatchReply,
    CoordinateBatches,
    DecideBatch,
    ListBatches,
    PrepareBatch,
    PrepareBatchReply,
    ResolveBatch,
    VoteBatch,
    VoteBatchReply,
)
from halfmoon.wire.json import from_json

LOOK_MS, IDLE_LOOK_MS = 1000, 60_000
"""How often attempts are checked for expiry; and idle ids, if there are no attempts."""
AGAIN_MS = 100
"""How long publishing pauses after a refusal of the store."""
SNAPSHOT_STEPS, SNAPSHOT_MS = 2000, 3_600_000
"""A snapshot is due after so many steps, or so long after the last: a start reads the log from it on, which is kept."""
PIECE_TIMEOUT_MIN_MS = 1000


class Batches(Service):
    """The service that answers 31030 to 31037. ``start`` runs an operation in the background."""

    def __init__(
        self, context: Context, sends: Sends, delays: Delays, name_servers: Iterable[str], start: Callable[[Op[None], str], None]
    ) -> None:
        settings, store, topics, now = context.settings, context.store, context.topics, context.started
        self._settings, self._store, self._topics, self._sends = settings, store, topics, sends
        self._log = RateLimitedLog(logging.getLogger("halfmoon.broker.batches"), now.steady)
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.streams = Streams()
        self._journal = Journal(store, sends)
        self.pending_replies = context.pending_replies
        self._queue_waiters = context.queue_waiters
        self.publishing = Publishing(store, sends, topics, delays, self._log.warning)
        self.coordinator = Coordinator(settings.name, self.streams, self.pending_replies, self.write, self._stream, self.counters)
        self.recovery = BatchRecovery(self, settings.name, list(name_servers), start, self._log.warning)
        self.listing = Listing(settings.name, self.streams, self.publishing, self.counters)
        self._waiting: dict[tuple[str, int], list[Request]] = {}
        """ApplyBatch requests that are answered once their batch is published."""
        self._finishing: set[str] = set()
        """Ids with a batch that is in the log completely, and not durable yet."""
        self._blocked_at = LONG_AGO
        self._stuck: set[str] = set()
        """Ids with a batch that cannot be published, for one of its pieces is unreadable."""
        self._steps = 0
        self._snapshot_ms = int(now.date)
        self._kept_from: int | None = None
        """Physical offset of the first step that a start needs."""
        self._look_at = now.steady
        self._restore(now.steady)
        self._pin = store.maintenance.pin("batch transactions", self.needed_from)

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            PrepareBatch: self.prepare,
            VoteBatch: self.vote,
            DecideBatch: self.coordinator.decide,
            ApplyBatch: self.apply,
            ResolveBatch: self.coordinator.resolve,
            AbortBatch: self.abort,
            ListBatches: self.listing.list,
            CoordinateBatches: self.coordinator.coordinate,
        }

    def _restore(self, now: Steady) -> None:
        """Read the log; batches that were being published go on."""
        for place, store_ms, record in self._journal.replay():
            if isinstance(record, StoredPiece):
                self.streams.piece(record, now, restored=True)
                continue
            if isinstance(record, Snapshot):
                if not self.streams.table:
                    self.streams.restore(record, place)
                    self._kept_from, self._snapshot_ms = place if record.ids else None, store_ms
            else:
                self._take(record, store_ms, place)
        for stream in self.streams.table.values():  # no task could reach the broker while it was down
            for attempt in stream.attempts.values():
                attempt.heard_at = now
        self._publishing = self._unfinished()
        self.publishing.resume((id, batch) for id, stream in self._publishing.items() for batch in stream.applying.values())

    def _unfinished(self) -> dict[str, Stream]:
        """Return the ids with batches that a start found decided and not published completely."""
        return {stream.name: stream for stream in self.streams.table.values() if stream.applying}

    def needed_from(self) -> int:
        """Return the physical offset from which on the log is needed; its end while no id is known."""
        places = (self._kept_from, self.streams.needed_from())
        return min((place for place in places if place is not None), default=self._store.end_offset)

    # ------------------------------------------------------------ the log

    def write(self, step: Step, now: Instant) -> None:
        """Write a step and carry it out. Raises what `Sends.append` does: then nothing was changed."""
        with self._store.maintenance.making_room(self._pin):  # a step is small, and lets log files go
            place = self._journal.write(step, now.date)
        self._take(step, now.date, place)

    def _take(self, step: Step, now: int, place: int) -> None:
        """Carry out a step that is in the log, at a place."""
        self._kept_from = place if self._kept_from is None else self._kept_from
        self.streams.take(step, now, place)
        self._steps += 1
        if not len(self.streams):  # the steps so far are about forgotten ids
            self._kept_from = None

    def snapshot(self, now: Instant) -> None:
        """Write what is known, so that a start reads no further back."""
        snapshot = self.streams.snapshot(self._store.queue_max(BATCH_TOPIC, PIECES))
        with self._store.maintenance.making_room(self._pin):
            self._kept_from = self._journal.write(snapshot, now.date)
        self._snapshot_ms, self._steps = now.date, 0

    def _stream(self, id: str, now: Instant) -> Stream:
        """Return an id's stream, created if it is missing. Raises SystemBusy (2) when there are too many."""
        if id not in self.streams.table and len(self.streams) >= self._settings.batch_ids_max:
            self._make_room(now)
        self._look_at = min(self._look_at, now.steady + LOOK_MS)
        return self.streams.ensure(id, now.date, self._store.end_offset)

    # ------------------------------------------------------------ first phase

    def prepare(self, request: Request) -> Reply | None:
        """Store a piece of an attempt (31030); answered once it is copied, for the next master must have it to go on."""
        h, now = request.header(PrepareBatch), request.now
        self._check_piece(h, now.date)
        self.pending_replies.check_room()
        stream = self.streams.get(h.transactional_id)
        if stream is not None and self.is_decided(stream, h.batch_id):
            decided = PrepareBatchReply(result="DECIDED", coordinator=stream.coordinator or h.coordinator)
            self.pending_replies.reply_copied(request, Reply(header=decided))
            return None
        # Before anything is changed: a request that waited is handled again from the beginning.
        for topic, queue_id in ((h.topic, h.queue_id), (BATCH_TOPIC, PIECES)):
            if not self._sends.ready(topic, queue_id):
                self._queue_waiters.wait(request, topic, queue_id, self.prepare)
                return None
        body = bytes(request.command.body)
        self._sends.check_size(len(body))
        checksum = piece_checksum(h.topic, h.queue_id, h.first_seq, body)
        stream = self._stream(h.transactional_id, now)
        attempt = stream.attempts.get((h.batch_id, h.attempt))
        known = None if attempt is None else attempt.pieces.get((h.topic, h.queue_id, h.first_seq))
        if known is None:
            self._check_room(attempt, len(body))
            self._store_piece(h, body, checksum, request.peer.host, now)
        elif known.checksum != checksum or known.count != h.count:
            raise MessageRefused(f"another piece of attempt {h.attempt} begins at {h.first_seq} of this queue")
        elif attempt is not None:  # the same piece again: its reply was lost
            attempt.heard_at = now.steady
        stored = PrepareBatchReply(result="STORED", coordinator=stream.coordinator)
        self.pending_replies.reply_copied(request, Reply(header=stored))
        return None

    def _check_piece(self, h: PrepareBatch, now: int) -> None:
        """Refuse a piece whose header or queue is invalid, before its messages are read. Raises BrokerError."""
        check_names(h.transactional_id, h.attempt, h.coordinator)
        if min(h.batch_id, h.partition, h.first_seq) < 0:
            raise InvalidParameter("batch id, partition and first sequence are 0 or more")
        if (h.sys_flag or 0) & ~GIVEN_FLAGS:
            raise InvalidParameter(f"the sysFlag of a piece may only say how its bodies are compressed: {h.sys_flag}")
        if h.timeout_ms is not None and not PIECE_TIMEOUT_MIN_MS <= h.timeout_ms <= self._settings.batch_timeout_max_ms:
            raise InvalidParameter(
                f"a timeout of {h.timeout_ms} ms is not between {PIECE_TIMEOUT_MIN_MS} and {self._settings.batch_timeout_max_ms} "
                "(batch_timeout_max_ms)"
            )
        self._check_place(h.topic, h.queue_id, now)

    def _store_piece(self, h: PrepareBatch, body: bytes, checksum: int, host: bytes, now: Instant) -> None:
        """Store a new piece. Raises BrokerError now for a message that could not be published later."""
        sys_flag = h.sys_flag or 0
        drafts = drafts_of(self._sends, body, sys_flag, now.date, host)
        if may_wait(body):
            self.publishing.check(h.topic, h.queue_id, drafts, now.date)
        if len(drafts) != h.count:
            raise MessageRefused(f"the piece holds {len(drafts)} messages, its header says {h.count}")
        timeout_ms = self._settings.batch_timeout_ms if h.timeout_ms is None else h.timeout_ms
        piece = self._journal.write_piece(h, timeout_ms, checksum, body, host, sys_flag, now.date)
        stored = StoredPiece(h.transactional_id, h.batch_id, h.attempt, h.coordinator, timeout_ms, now.date, piece)
        self.streams.piece(stored, now.steady, restored=False)
        self.counters["pieces"] += 1
        self.counters["prepared"] += len(drafts)

    def _check_place(self, topic: str, queue_id: int, now: int) -> None:
        check_topic(topic)
        if topic in FORBIDDEN_TO_SEND:
            raise NoPermission(f"Sending message to topic[{topic}] is forbidden.")
        config = self._topics.for_send(topic, TEMPLATE_TOPIC, self._settings.default_queue_count, False, now)
        if not 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums):
            raise BrokerError(f"topic[{topic}] has no queue {queue_id}")

    def _check_room(self, attempt: AttemptState | None, size_bytes: int) -> None:
        s, streams = self._settings, self.streams
        if attempt is None and streams.attempt_count >= s.batch_attempts_max:
            raise SystemBusy(f"the broker has {streams.attempt_count} undecided attempts, its bound (batch_attempts_max)")
        if streams.piece_count >= s.batch_pieces_max:
            raise SystemBusy(f"the broker has {streams.piece_count} undecided pieces, its bound (batch_pieces_max)")
        if streams.held_bytes + size_bytes > s.batch_bytes_max:
            raise SystemBusy(f"the broker has {streams.held_bytes} undecided bytes, its bound (batch_bytes_max)")

    def is_decided(self, stream: Stream, batch: int) -> bool:
        """Whether a batch takes no more pieces and votes, as far as is known here."""
        return batch <= max(stream.applied, stream.last)

    def vote(self, request: Request) -> Reply | None:
        """Promise to keep attempts until they are decided (31031), once they are on the device."""
        h = request.header(VoteBatch)
        check_names(h.transactional_id, h.coordinator)
        promises = promises_of(request)
        self.pending_replies.check_room()
        reason = self.against(h.transactional_id, h.batch_id, h.coordinator, promises)
        if reason is not None:
            self.counters["votes_no"] += 1
            return Reply(header=VoteBatchReply(result="NO", reason=reason))
        stream = self.streams.get(h.transactional_id)
        names = [] if stream is None else [name for name in promises if (h.batch_id, name) in stream.attempts]
        if stream is not None:
            for name in names:
                stream.attempts[h.batch_id, name].heard_at = request.now.steady
        if stream is not None and any(not stream.attempts[h.batch_id, name].voted for name in names):
            self.write(Voted(h.transactional_id, h.batch_id, names, h.coordinator), request.now)
        self.counters["votes_yes"] += 1
        self.pending_replies.reply(request, Reply(header=VoteBatchReply(result="YES")), durable=True)
        return None

    def against(self, id: str, batch: int, coordinator: str, promises: dict[str, BatchPromise]) -> str | None:
        """Return why attempts cannot be promised; None: they can."""
        stream = self.streams.get(id)
        if stream is None:
            return f"this broker has no attempt of {id}" if any(promise.count for promise in promises.values()) else None
        if self.is_decided(stream, batch):
            return f"batch {batch} is decided"
        if stream.coordinator and stream.coordinator != coordinator:
            return f"{stream.coordinator} coordinates {id}"
        return lacking(stream, batch, promises)

    # ------------------------------------------------------------ second phase

    def apply(self, request: Request) -> Reply | None:
        """Publish decided attempts (31033); answered once they are visible and on the device."""
        h = request.header(ApplyBatch)
        check_names(h.transactional_id, h.coordinator)
        promises = promises_of(request)
        self.pending_replies.check_room()
        stream = self.streams.get(h.transactional_id)
        if stream is None:
            if any(promise.count for promise in promises.values()):
                raise BrokerError(f"this broker has no attempt of {h.transactional_id}")
            return Reply(header=ApplyBatchReply(result="APPLIED"))
        if h.batch_id > stream.applied:
            self.begin(stream, h.batch_id, h.coordinator, promises, request.now)
        if not self.is_published(stream, h.batch_id):
            self._waiting.setdefault((stream.name, h.batch_id), []).append(request)
            self._publish(request.now)
            return None
        self.pending_replies.reply(request, Reply(header=ApplyBatchReply(result="APPLIED")), durable=True)
        return None

    def is_published(self, stream: Stream, batch: int) -> bool:
        """Whether a batch that was applied here is published to its end."""
        return not any(each <= batch for each in stream.applying)

    def begin(self, stream: Stream, batch: int, coordinator: str, promises: dict[str, BatchPromise], now: Instant) -> None:
        """Write down that a batch is decided here; its publishing begins.

        Raises:
            SystemBusy: an earlier batch is in doubt here; its coordinator is being asked.
            BrokerError: messages of the batch are missing.
        """
        earlier = [each for each in stream.attempts.values() if each.batch < batch and each.voted]
        if earlier:
            for attempt in earlier:
                attempt.ask_soon = True
            self._look_at = now.steady
            raise SystemBusy(f"batch {earlier[0].batch} of {stream.name} is in doubt here, its coordinator is being asked")
        if (reason := lacking(stream, batch, promises)) is not None:
            raise BrokerError(f"batch {batch} of {stream.name} cannot be applied: {reason}")
        names = [name for name in promises if (batch, name) in stream.attempts]
        self.write(Applied(stream.name, batch, names, coordinator), now)
        self._publishing[stream.name] = stream
        self.counters["applied"] += 1
        self._look_at = now.steady

    def _ready(self) -> list[Stream]:
        """Return the ids with a batch to publish now."""
        streams = [s for s in self._publishing.values() if s.name not in self._finishing and s.name not in self._stuck]
        return [s for s in streams if self.publishing.is_free(s.name, s.applying[min(s.applying)])]

    def _publish(self, now: Instant) -> None:
        """Publish a part of every batch that is being applied: of each id the earliest first."""
        for stream in self._ready():
            application = stream.applying[min(stream.applying)]
            if not self.publishing.is_free(stream.name, application):  # a batch before it in this loop took one of its queues
                continue
            try:
                if self.publishing.go_on(stream.name, application, now.date):
                    self._published(stream, application, now)
            except BrokerError as exc:
                self._blocked_at = now.steady + AGAIN_MS
                self._log.warning("batch %d of %s waits to be published: %s", application.batch, stream.name, exc.remark)
            except CorruptRecord as exc:
                self._stuck.add(stream.name)
                self.publishing.release(stream.name, application.batch)
                self._log.warning("batch %d of %s cannot be published: %s", application.batch, stream.name, exc)
                self._tell(stream.name, application.batch, Reply(1, f"the batch cannot be published: {exc}"))

    def _published(self, stream: Stream, application: Application, now: Instant) -> None:
        """All of a batch is in the log: once that is durable, write down its end and answer those who wait for it."""
        self._finishing.add(stream.name)

        def done(failure: BrokerError | None, now: Instant) -> None:
            self._finishing.discard(stream.name)
            if failure is not None:
                self._tell(stream.name, application.batch, refused(failure))
                return
            self.publishing.release(stream.name, application.batch)
            # Another batch may have waited for these queues.
            self._blocked_at = now.steady
            reply = Reply(header=ApplyBatchReply(result="APPLIED", count=application.count))
            try:
                self.write(Finished(stream.name, application.batch), now)
            except BrokerError as exc:  # harmless: the next start finds all messages published
                self._log.warning(
                    "batch %d of %s is published, but that is not recorded yet: %s", application.batch, stream.name, exc.remark
                )
                self.streams.take(Finished(stream.name, application.batch), now.date, self._store.end_offset)
            if not stream.applying:
                self._publishing.pop(stream.name, None)
            self._look_at = now.steady
            self._tell(stream.name, application.batch, reply)

        self.pending_replies.when_durable(done)

    def _tell(self, id: str, batch: int, reply: Reply) -> None:
        for request in self._waiting.pop((id, batch), ()):
            self.pending_replies.reply_now(request, reply)

    def abort(self, request: Request) -> Reply:
        """Drop attempts that will not be decided, or ask about them soon if they were voted for (31035)."""
        h = request.header(AbortBatch)
        check_names(h.transactional_id)
        dropped = 0
        stream = self.streams.get(h.transactional_id)
        for name in promises_of(request) if stream is not None else ():
            attempt = stream.attempts.get((h.batch_id, name)) if stream is not None else None
            if attempt is None:
                continue
            # A voted attempt must be kept until the coordinator decides; the request is only a hint to ask it.
            if attempt.voted:
                attempt.ask_soon = True
                self._look_at = request.now.steady
            else:
                self.drop(h.transactional_id, attempt, request.now)
                dropped += 1
        return Reply(header=AbortBatchReply(dropped=dropped))

    def drop(self, id: str, attempt: AttemptState, now: Instant) -> None:
        """Forget an attempt that no decision names. Raises what `Sends.append` does."""
        self.write(Dropped(id, attempt.batch, attempt.name), now)
        self.counters["dropped"] += 1

    # ------------------------------------------------------------ time

    def turn(self, now: Instant) -> None:
        """Carry out the answers of coordinators."""
        self.recovery.turn(now)

    def due(self, now: Instant) -> Steady | None:
        """When `tick` wants to be called."""
        if not len(self.streams):
            return None
        if self._publishing and self._ready():
            return min(self._look_at, self._blocked_at)
        return self._look_at

    def texts(self, now: Instant) -> dict[str, str]:
        """Return how many ids and undecided attempts there are."""
        return self.listing.texts()

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield what is held of ids and attempts, and counts."""
        yield metrics.BATCH_IDS, broker, len(self.streams)
        yield metrics.BATCH_ATTEMPTS, broker, self.streams.attempt_count
        yield metrics.BATCH_BYTES, broker, self.streams.held_bytes
        for name, count in self.listing.counters().items():
            yield metrics.OF_BATCHES[name], broker, count

    def tick(self, now: Instant) -> None:
        """Go on publishing, ask about attempts in doubt, forget idle ids, write snapshots."""
        self._log.tick(now.steady)
        if not len(self.streams) or (self._store.refusal is not None and not self._pin.in_the_way_below):
            self._look_at = self._blocked_at = max(self._look_at, now.steady + LOOK_MS)
            return
        if self._publishing and now.steady >= self._blocked_at:
            with self._store.maintenance.making_room(self._pin):
                self._publish(now)
        if now.steady >= self._look_at:
            self._look_at = now.steady + IDLE_LOOK_MS
            try:
                self._look(now)
            except BrokerError as exc:
                self._look_at = now.steady + LOOK_MS
                self._log.warning("batch transactions wait for the store: %s", exc.remark)

    def _look(self, now: Instant) -> None:
        for stream in list(self.streams.table.values()):
            if self.recovery.look(stream, now):
                self._look_at = now.steady + LOOK_MS
            if stream.name.startswith(ONE_RUN) and self._is_idle(stream, now.date):
                self.write(Forgotten(stream.name, -1), now)
        wanted = self._kept_from is not None and self._kept_from < self._pin.wanted_below
        due = self._steps >= SNAPSHOT_STEPS or now.date - self._snapshot_ms >= SNAPSHOT_MS
        if len(self.streams) and (wanted or due):
            self.snapshot(now)

    def _is_idle(self, stream: Stream, at_ms: int) -> bool:
        """Whether an id was unused for long before a time, and nothing of it is in progress."""
        if at_ms - stream.touched_ms < self._settings.batch_retention_ms or stream.attempts or stream.applying:
            return False
        return not any(decision.waiting for decision in stream.decisions.values())

    def _make_room(self, now: Instant) -> None:
        """Forget the id that is idle for longest, of those whose messages have all left the log. Raises SystemBusy (2)."""
        oldest_ms, first = self._store.earliest_ms(), self._store.min_offset
        idle = [stream for stream in self.streams.table.values() if stream.place < first and self._is_idle(stream, oldest_ms)]
        if not idle:
            raise SystemBusy(
                f"the broker knows {len(self.streams)} transactional ids, its bound (batch_ids_max), and none of which all "
                "messages have left the log"
            )
        name = min(idle, key=lambda stream: stream.touched_ms).name
        self.write(Forgotten(name, -1), now)
        self._log.warning("the transactional id %.255s is forgotten: the broker is at its bound (batch_ids_max)", name)


def lacking(stream: Stream, batch: int, promises: dict[str, BatchPromise]) -> str | None:
    """Return what is missing of promised attempts; None: nothing."""
    for name, promise in promises.items():
        attempt = stream.attempts.get((batch, name))
        if attempt is None:
            if promise.count:
                return f"this broker has no attempt {name}"
            continue
        if (reason := attempt.lacks(promise)) is not None:
            return reason
    return None


def promises_of(request: Request) -> dict[str, BatchPromise]:
    """Return the attempts of a request's body. Raises BrokerError (1) and InvalidParameter (29)."""
    promises = from_json(BatchPromises, request.command.body, bounds=BATCH_BODY).attempts
    if len(promises) > ATTEMPTS_MAX:
        raise InvalidParameter(f"a batch has up to {ATTEMPTS_MAX} attempts at a broker, not {len(promises)}")
    check_names(*promises)
    return promises


def check_names(*names: str) -> None:
    """Raise InvalidParameter (29) unless all are 1 to 255 printable characters."""
    for name in names:
        if not 0 < len(name) <= 255 or not name.isprintable():
            raise InvalidParameter(f"{name[:50]!r} is not a name of 1 to 255 printable characters")


COUNTERS = (
    "pieces", "prepared", "votes_yes", "votes_no", "decided", "already", "refused", "applied", "resolved", "aborted", "dropped",
)  # fmt: skip
"""Events since the start, see `halfmoon.metrics.BATCHES`."""
