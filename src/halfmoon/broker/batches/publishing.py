"""Publishing decided batches: their messages are stored in their queues, in order, each once, a part at a time.

A visible record has its identity in its prepared-transaction offset: the physical offset of its piece plus its number in it, from 1
on, for 0 means none. A start may find a batch published in part: then the queues tell which of its messages are there. Its queues
are held meanwhile: consumers see all of a batch in a queue at once, when all of it is durable here. A message with a delay is
parked when it is published: its delay begins then, and its parked record has the identity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from halfmoon.broker.batches.records import Piece
from halfmoon.broker.batches.state import Application
from halfmoon.broker.delay.delay import Delays, RequestedDelay
from halfmoon.broker.delay.properties import with_place
from halfmoon.broker.send.sends import Sends, items_of
from halfmoon.broker.topics import Topics
from halfmoon.errors import BrokerError, CorruptRecord, ServiceNotAvailable, StoreNotWritable
from halfmoon.hot import Draft, batch_drafts
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.store.entries import entries_behind, prepared_offset
from halfmoon.store.records import whole_record
from halfmoon.store.store import Store
from halfmoon.wire.codes import COMPRESSED, COMPRESSION_MASK
from halfmoon.wire.properties import DELAYED

MESSAGES_A_TURN, BYTES_A_TURN = 4096, 4 * 1024 * 1024
"""Bounds of one batch's share of a turn, in whole pieces: some 10 ms until others have their turn."""

PARKED_AS = 4
"""As how many messages one counts that may have a delay: each is stored by itself."""


GIVEN_FLAGS = COMPRESSED | COMPRESSION_MASK
"""Bits of sysFlag that a sender may set."""

_DELAYED = tuple(name.encode() for name in DELAYED)
_LONGEST = b"TIMER_OUT_MS\x01%d\x02TIMER_LOOK_MS\x01%d\x02" % (10**15, 10**15)
"""The most that parking adds to a message's properties, beside its place."""


class BatchProgress(msgspec.Struct):
    """Rest of one batch.

    ``already``: identities found in the log; ``queues``: where it goes; ``begun``: a piece of it was published.
    """

    left: deque[Piece]
    already: set[int]
    queues: set[tuple[str, int]]
    begun: bool = False


class Publishing:
    """The batches that one broker publishes, by id and batch. ``published`` and ``skipped`` count messages since the start."""

    messages_a_turn = MESSAGES_A_TURN

    def __init__(self, store: Store, sends: Sends, topics: Topics, delays: Delays, warn: Callable[..., None]) -> None:
        self._store, self._sends, self._topics, self._delays, self._warn = store, sends, topics, delays, warn
        self._progress: dict[tuple[str, int], BatchProgress] = {}
        self._held: dict[tuple[str, int], tuple[str, int]] = {}
        """Queues that show no new messages until a batch, by id and number, is complete."""
        self.published = self.skipped = 0

    def resume(self, unfinished: Iterable[tuple[str, Application]]) -> None:
        """Continue the batches that a start found decided and not finished. Of an incomplete one consumers have seen nothing."""
        for id, application in unfinished:
            self._progress_of(id, application)
        for (id, batch), progress in self._progress.items():
            own = {piece.physical_offset + number for piece in progress.left for number in range(1, piece.count + 1)}
            if own <= progress.already or not own & progress.already:
                continue
            for topic, queue_id in progress.queues:
                first = min((at for at, who in self._behind(progress, topic, queue_id) if who in own), default=None)
                self._store.hold(topic, queue_id, first)
                self._held[topic, queue_id] = id, batch

    def _behind(self, progress: BatchProgress, topic: str, queue_id: int) -> Iterator[tuple[int, int]]:
        """Yield queue offset and identity of the records of a queue behind the first piece for it."""
        place = min(piece.physical_offset for piece in progress.left if (piece.topic, piece.queue_id) == (topic, queue_id))
        for entry in entries_behind(self._store, topic, queue_id, place):
            record = self._store.record(entry.physical_offset, entry.size)
            if record is not None:
                yield entry.queue_offset, prepared_offset(record)

    def _progress_of(self, id: str, application: Application) -> BatchProgress:
        progress = self._progress.get((id, application.batch))
        if progress is None:
            pieces = in_order(application)
            queues = {(piece.topic, piece.queue_id) for piece in pieces}
            progress = self._progress[id, application.batch] = BatchProgress(deque(pieces), self._already(application), queues)
        return progress

    def is_free(self, id: str, application: Application) -> bool:
        """Whether no other batch holds one of a batch's queues: it takes all of them, or waits."""
        held = self._held
        return not held or all(
            held.get(queue, (id, application.batch)) == (id, application.batch)
            for queue in self._progress_of(id, application).queues
        )

    def _hold(self, id: str, batch: int, progress: BatchProgress) -> None:
        """Take the queues of a batch. Raises what `Sends.append` does."""
        for topic, queue_id in progress.queues:
            try:
                self._store.hold(topic, queue_id)
            except StoreNotWritable as exc:
                raise ServiceNotAvailable(f"service not available now: {exc}") from exc
            self._held[topic, queue_id] = id, batch

    @property
    def is_midway(self) -> bool:
        """Whether some batch is in the log in part."""
        return any(progress.begun and progress.left for progress in self._progress.values())

    def release(self, id: str, batch: int) -> None:
        """Show a batch: in each queue at once."""
        for topic, queue_id in [queue for queue, whose in self._held.items() if whose == (id, batch)]:
            del self._held[topic, queue_id]
            self._store.release(topic, queue_id)

    def go_on(self, id: str, application: Application, now: int) -> bool:
        """Publish a part of a batch; return whether all of it is. After an error the rest is left for later.

        Raises what `Sends.append` does, and CorruptRecord when a piece cannot be read any more.
        """
        progress = self._progress_of(id, application)
        self._hold(id, application.batch, progress)
        messages = size_bytes = 0
        while progress.left:
            if messages >= self.messages_a_turn or size_bytes >= BYTES_A_TURN:
                return False
            piece = progress.left[0]
            messages += self._publish(piece, progress.already, now)
            progress.left.popleft()
            progress.begun = True
            size_bytes += piece.size
        del self._progress[id, application.batch]
        return True

    def _publish(self, piece: Piece, already: set[int], now: int) -> int:
        """Publish a piece except the messages in ``already``; return as how many messages it counts in this turn."""
        record = self._store.record(piece.physical_offset, piece.size)
        if record is None:
            raise CorruptRecord(piece.physical_offset, "a piece of a batch is missing")
        parts = whole_record(record)
        sys_flag = parts.sys_flag & GIVEN_FLAGS
        drafts = drafts_of(self._sends, parts.body, sys_flag, parts.born_ms, parts.born_host)
        named = [
            (*draft[:7], identity, draft[8])
            for identity, draft in enumerate(drafts, piece.physical_offset + 1)
            if identity not in already
        ]
        if (change := self._topics.make_readable(piece.topic, piece.queue_id, now)) is not None:
            self._warn("%s: a batch for queue %d is decided", change, piece.queue_id)
        if later := may_wait(parts.body):
            self._append(piece, named, already, now)
        elif named:
            self._sends.append(piece.topic, piece.queue_id, named, now)
        self.published += len(named)
        self.skipped += len(drafts) - len(named)
        return len(drafts) * (PARKED_AS if later else 1)

    def _append(self, piece: Piece, named: Sequence[Draft], already: set[int], now: int) -> None:
        """Park the messages with a delay and store the others, in order.

        If the store refuses one, those before it are in ``already`` and are not stored again.
        """
        for delay, group in groupby(((self._requested_delay(draft, now), draft) for draft in named), key=itemgetter(0)):
            drafts = [draft for _, draft in group]
            if delay is None:
                self._sends.append(piece.topic, piece.queue_id, drafts, now)
                already.update(draft[7] for draft in drafts)
                continue
            for draft in drafts:
                self._delays.put(piece.topic, piece.queue_id, delay, draft, now, identity=draft[7])
                already.add(draft[7])

    def _requested_delay(self, draft: Draft, now: int) -> RequestedDelay | None:
        try:
            return self._delays.requested(draft[1], now)
        except BrokerError as exc:  # it was accepted with the piece; the settings have changed since
            self._warn("a message of a batch is published without its delay: %s", exc)
            return None

    def check(self, topic: str, queue_id: int, drafts: Iterable[Draft], now: int) -> None:
        """Check that messages with a delay can be parked. Raises MessageRefused (13), BrokerError 1."""
        timed = 0
        for draft in drafts:
            if (delay := self._delays.requested(draft[1], now)) is not None:
                with_place(draft[1], topic, queue_id, _LONGEST, keep_asked=delay.deliver_ms is not None)
                timed += delay.deliver_ms is not None
        self._delays.timer.check_room(timed)

    def _already(self, application: Application) -> set[int]:
        """Return the identities of a batch that are published: none, unless a start found some of its attempts in the log."""
        pieces = [piece for attempt in application.attempts.values() if attempt.restored for piece in attempt.pieces.values()]
        lowest: dict[tuple[str, int], int] = {}
        for piece in pieces:
            queue = piece.topic, piece.queue_id
            lowest[queue] = min(piece.physical_offset, lowest.get(queue, piece.physical_offset))
        published: set[int] = set()
        for (topic, queue_id), place in lowest.items():
            for entry in entries_behind(self._store, topic, queue_id, place):
                record = self._store.record(entry.physical_offset, entry.size)
                if record is not None and (identity := prepared_offset(record)):
                    published.add(identity)
        if lowest:
            published |= {prepared_offset(record) for record in self._delays.parked_behind(min(lowest.values()))} - {0}
        return published


def in_order(application: Application) -> list[Piece]:
    """Return the pieces of a batch as they are published: in each queue by partition, then by sequence."""
    pieces = [(piece, attempt.name) for attempt in application.attempts.values() for piece in attempt.pieces.values()]
    pieces.sort(key=lambda pair: (pair[0].topic, pair[0].queue_id, pair[0].partition, pair[1], pair[0].first_seq))
    return [piece for piece, _ in pieces]


def may_wait(body: bytes) -> bool:
    """Whether a piece may hold a message with a delay."""
    return any(name in body for name in _DELAYED)


def drafts_of(sends: Sends, body: bytes, sys_flag: int, born_ms: int, host: bytes) -> list[Draft]:
    """Return the messages of a piece as they are stored.

    Raises:
        MessageRefused: the body does not parse, holds none or too many, or a message is not one that a batch can have.
        NoPermission: a message is transactional by itself.
    """
    drafts = batch_drafts(body, sends.broker_pairs, sys_flag, born_ms, host, 0, PROPERTIES_BYTES_MAX)
    return _prepared(sends, body, sys_flag, born_ms, host) if drafts is None else drafts


def _prepared(sends: Sends, body: bytes, sys_flag: int, born_ms: int, host: bytes) -> list[Draft]:
    drafts: list[Draft] = []
    for item_body, properties, flag in items_of(body):
        text, code, _ = sends.prepare(properties)
        drafts.append((item_body, text, flag, sys_flag, born_ms, host, 0, 0, code))
    return drafts
