"""The state of batch transactions: ids, their attempts here, and the decisions of those that this broker coordinates.

Every change follows from one piece or step of the log (`Streams.take`), when it is written and when a start reads it again: so
memory and log cannot differ. Decides nothing, writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatchmethod

import msgspec

from halfmoon.broker.batches.records import (
    Aborted,
    Acknowledged,
    Applied,
    Coordinated,
    Decided,
    Dropped,
    Finished,
    Forgotten,
    Parts,
    Piece,
    Reported,
    SavedAttempt,
    SavedDecision,
    SavedId,
    Snapshot,
    Step,
    StoredPiece,
    Voted,
)
from halfmoon.instant import LONG_AGO, Steady
from halfmoon.wire.bodies.batches import BatchPromise, sum_of

PieceKey = tuple[str, int, int]
"""topic, queue id, first seq"""


class AttemptState(msgspec.Struct):
    """Messages that one attempt of a task sent here.

    ``heard_at``: the last sign of life. ``restored``: found by a start. ``ask_soon``: ask the coordinator before the timeout.
    """

    name: str
    batch: int
    since_ms: int
    timeout_ms: int
    heard_at: Steady
    voted: bool = False
    restored: bool = False
    ask_soon: bool = False
    pieces: dict[PieceKey, Piece] = {}
    count: int = 0
    size_bytes: int = 0

    def add(self, piece: Piece) -> None:
        """Add a piece that is not there yet."""
        self.pieces[piece.topic, piece.queue_id, piece.first_seq] = piece
        self.count += piece.count
        self.size_bytes += piece.size

    def lacks(self, promise: BatchPromise) -> str | None:
        """Return how the attempt differs from the promise; None: it is complete."""
        if self.count != promise.count:
            return f"this broker has {self.count} messages of attempt {self.name}, {promise.count} were sent"
        if sum_of(piece.checksum for piece in self.pieces.values()) != promise.checksum:
            return f"the checksum of attempt {self.name} differs"
        ends: dict[tuple[str, int], int] = {}
        for topic, queue_id, first_seq in sorted(self.pieces):
            if ends.get((topic, queue_id), 0) != first_seq:
                return f"pieces of attempt {self.name} for queue {queue_id} of {topic} do not follow each other"
            ends[topic, queue_id] = first_seq + self.pieces[topic, queue_id, first_seq].count
        return None


class Application(msgspec.Struct):
    """A decided batch that is being published."""

    batch: int
    attempts: dict[str, AttemptState]

    @property
    def count(self) -> int:
        """How many messages it has."""
        return sum(attempt.count for attempt in self.attempts.values())


class Decision(msgspec.Struct):
    """A coordinator's decision, and the participants that have applied it."""

    batch: int
    parts: Parts
    digest: str
    acknowledged: set[str] = set()

    @property
    def waiting(self) -> list[str]:
        """Participants that have not reported it as applied yet."""
        return sorted(self.parts.keys() - self.acknowledged)

    def names(self, attempt: str) -> bool:
        """Whether the attempt is part of the batch."""
        return any(attempt in promises for promises in self.parts.values())


class Stream(msgspec.Struct):
    """One transactional id. ``applied``, ``reported`` (to the coordinator) and ``last`` (decided here) are batch ids; -1: none."""

    name: str
    coordinator: str = ""
    touched_ms: int = 0
    place: int = 0
    """Where in the log it was last used: its messages lie before. Dates cannot tell, since the clock may be set back."""
    applied: int = -1
    reported: int = -1
    last: int = -1
    attempts: dict[tuple[int, str], AttemptState] = {}
    applying: dict[int, Application] = {}
    """In the order of their batches."""
    decisions: dict[int, Decision] = {}
    aborted: dict[int, set[str]] = {}

    def heard_at(self) -> dict[int, Steady]:
        """Return when each batch with undecided attempts was last heard of: while one of its tasks works, the others wait."""
        heard: dict[int, Steady] = {}
        for attempt in self.attempts.values():
            heard[attempt.batch] = max(attempt.heard_at, heard.get(attempt.batch, LONG_AGO))
        return heard

    def held(self) -> Iterator[AttemptState]:
        """Yield every attempt whose pieces are still needed."""
        yield from self.attempts.values()
        for application in self.applying.values():
            yield from application.attempts.values()

    def find(self, batch: int, attempt: str) -> AttemptState | None:
        """Return an attempt that is undecided or being published."""
        undecided = self.attempts.get((batch, attempt))
        if undecided is None and batch in self.applying:
            return self.applying[batch].attempts.get(attempt)
        return undecided


class Streams:
    """All ids of one broker, with sums over their undecided attempts."""

    def __init__(self) -> None:
        self.table: dict[str, Stream] = {}
        self.attempt_count = self.piece_count = self.held_bytes = 0

    def __len__(self) -> int:
        return len(self.table)

    def get(self, id: str) -> Stream | None:
        """Return an id's stream, or None."""
        return self.table.get(id)

    def ensure(self, id: str, now: int, place: int) -> Stream:
        """Return an id's stream, created if it is missing; it is used now, at a place in the log."""
        stream = self.table.get(id)
        if stream is None:
            stream = self.table[id] = Stream(id)
        stream.touched_ms, stream.place = max(stream.touched_ms, now), max(stream.place, place)
        return stream

    # ------------------------------------------------------------ pieces

    def piece(self, stored: StoredPiece, heard: Steady, *, restored: bool) -> None:
        """Add a piece, unless its batch is decided here or it is there already."""
        stream = self.ensure(stored.id, stored.store_ms, stored.piece.physical_offset)
        if stored.batch <= stream.applied and stored.batch not in stream.applying:
            return
        attempt = stream.find(stored.batch, stored.attempt)
        if attempt is None:
            if stored.batch <= stream.applied:
                return
            attempt = AttemptState(stored.attempt, stored.batch, stored.store_ms, stored.timeout_ms, heard, restored=restored)
            stream.attempts[stored.batch, stored.attempt] = attempt
            self.attempt_count += 1
        stream.coordinator = stream.coordinator or stored.coordinator
        piece = stored.piece
        if (piece.topic, piece.queue_id, piece.first_seq) not in attempt.pieces:
            attempt.add(piece)
            attempt.heard_at = max(attempt.heard_at, heard)
            self.piece_count += 1
            self.held_bytes += piece.size

    def _released(self, attempt: AttemptState) -> None:
        self.attempt_count -= 1
        self.piece_count -= len(attempt.pieces)
        self.held_bytes -= attempt.size_bytes

    # ------------------------------------------------------------ steps

    def take(self, step: Step, now: int, place: int) -> None:
        """Carry out a step that is in the log, at a place."""
        self._take(step, self.ensure(step.id, now, place))

    @singledispatchmethod
    def _take(self, step: Step, stream: Stream) -> None:
        raise AssertionError(step)

    @_take.register
    def _(self, step: Voted, stream: Stream) -> None:
        stream.coordinator = step.coordinator
        for name in step.attempts:
            if (attempt := stream.attempts.get((step.batch, name))) is not None:
                attempt.voted = True

    @_take.register
    def _(self, step: Applied, stream: Stream) -> None:
        stream.coordinator = stream.coordinator or step.coordinator
        stream.applied = max(stream.applied, step.batch)
        chosen = {name: stream.attempts.pop((step.batch, name)) for name in step.attempts if (step.batch, name) in stream.attempts}
        stream.applying[step.batch] = Application(step.batch, chosen)
        # The decision names all that count: the others will never be published.
        for key in [key for key in stream.attempts if key[0] <= step.batch]:
            self._released(stream.attempts.pop(key))

    @_take.register
    def _(self, step: Finished, stream: Stream) -> None:
        application = stream.applying.pop(step.batch, None)
        for attempt in application.attempts.values() if application is not None else ():
            self._released(attempt)

    @_take.register
    def _(self, step: Dropped, stream: Stream) -> None:
        if (attempt := stream.attempts.pop((step.batch, step.attempt), None)) is not None:
            self._released(attempt)

    @_take.register
    def _(self, step: Decided, stream: Stream) -> None:
        stream.last = max(stream.last, step.batch)
        stream.decisions[step.batch] = Decision(step.batch, step.parts, step.digest)
        for batch in [batch for batch in stream.aborted if batch <= step.batch]:
            del stream.aborted[batch]
        _forget_complete(stream)

    @_take.register
    def _(self, step: Aborted, stream: Stream) -> None:
        if step.batch > stream.last:
            stream.aborted.setdefault(step.batch, set()).add(step.attempt)

    @_take.register
    def _(self, step: Acknowledged, stream: Stream) -> None:
        for batch, decision in stream.decisions.items():
            if batch <= step.batch:
                decision.acknowledged.add(step.participant)
        _forget_complete(stream)

    @_take.register
    def _(self, step: Reported, stream: Stream) -> None:
        stream.reported = max(stream.reported, step.batch)

    @_take.register
    def _(self, step: Coordinated, stream: Stream) -> None:
        stream.coordinator = step.coordinator

    @_take.register
    def _(self, step: Forgotten, stream: Stream) -> None:
        for attempt in self.table.pop(step.id).held():
            self._released(attempt)

    # ------------------------------------------------------------ snapshots

    def snapshot(self, pieces_from: int) -> Snapshot:
        """Return everything; ``pieces_from`` stands in it where no piece is needed."""
        indexes = [piece.index for stream in self.table.values() for attempt in stream.held() for piece in attempt.pieces.values()]
        return Snapshot([_saved(stream) for stream in self.table.values()], min([pieces_from, *indexes]))

    def restore(self, snapshot: Snapshot, place: int) -> None:
        """Begin with a snapshot at a place in the log; the pieces of its attempts come behind it."""
        for saved in snapshot.ids:
            stream = self.table[saved.name] = Stream(
                saved.name, saved.coordinator, saved.touched_ms, place, saved.applied, saved.reported, saved.last
            )
            stream.aborted = {batch: set(names) for batch, names in saved.aborted.items()}
            for d in saved.decisions:
                stream.decisions[d.batch] = Decision(d.batch, d.parts, d.digest, set(d.acknowledged))
            for a in sorted(saved.attempts, key=lambda a: a.batch):
                attempt = AttemptState(a.name, a.batch, a.since_ms, a.timeout_ms, LONG_AGO, a.voted, restored=True)
                self.attempt_count += 1
                if a.applying:
                    stream.applying.setdefault(a.batch, Application(a.batch, {})).attempts[a.name] = attempt
                else:
                    stream.attempts[a.batch, a.name] = attempt

    def needed_from(self) -> int | None:
        """Return the lowest physical offset of a piece that is still needed; None: there is none."""
        places = (
            # The first piece lies lowest: they were added in the order of the log.
            next(iter(attempt.pieces.values())).physical_offset
            for stream in self.table.values()
            for attempt in stream.held()
            if attempt.pieces
        )
        return min(places, default=None)


def _saved(stream: Stream) -> SavedId:
    attempts = [SavedAttempt(a.batch, a.name, a.since_ms, a.timeout_ms, a.voted) for a in stream.attempts.values()] + [
        SavedAttempt(application.batch, a.name, a.since_ms, a.timeout_ms, a.voted, applying=True)
        for application in stream.applying.values()
        for a in application.attempts.values()
    ]
    return SavedId(
        stream.name, stream.coordinator, stream.touched_ms, stream.applied, stream.reported, stream.last, attempts,
        [SavedDecision(d.batch, d.parts, d.digest, sorted(d.acknowledged)) for d in stream.decisions.values()],
        {batch: sorted(names) for batch, names in stream.aborted.items()},
    )  # fmt: skip


def _forget_complete(stream: Stream) -> None:
    """Forget decisions that every participant has applied; the digest of the last one stays, for drivers ask for it again."""
    for batch in [batch for batch, decision in stream.decisions.items() if not decision.waiting]:
        if batch < stream.last:
            del stream.decisions[batch]
        else:
            stream.decisions[batch].parts = {}
