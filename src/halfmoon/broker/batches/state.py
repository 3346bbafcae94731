"""What is known of batch transactions: ids, their attempts here, and decisions of those that this broker coordinates.

Every change is the effect of one piece or step of the log (`Streams.take`), at the time it is written and when it is read again at
a start: so memory and log cannot differ. Decides nothing, writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatchmethod

import msgspec

from halfmoon.broker.batches.records import (
    Acknowledged,
    Applied,
    Coordinated,
    Decided,
    Dropped,
    Finished,
    Forgotten,
    GivenUp,
    Parts,
    Piece,
    SavedAttempt,
    SavedDecision,
    SavedId,
    Snapshot,
    Step,
    StoredPiece,
    Told,
    Voted,
)
from halfmoon.wire.bodies.batches import BatchPromise, sum_of

PieceKey = tuple[str, int, int]
"""topic, queue id, first seq"""


class Attempt(msgspec.Struct):
    """What one try of one task sent here. ``heard_ms``: the last sign of life. ``restored``: a start found it in the log.
    ``wanted``: to be asked about before its time."""

    name: str
    batch: int
    since_ms: int
    timeout_ms: int
    heard_ms: int
    voted: bool = False
    restored: bool = False
    wanted: bool = False
    pieces: dict[PieceKey, Piece] = {}
    count: int = 0
    size_bytes: int = 0

    def add(self, piece: Piece) -> None:
        """Take in a piece that is not there yet."""
        self.pieces[piece.topic, piece.queue_id, piece.first_seq] = piece
        self.count += piece.count
        self.size_bytes += piece.size

    def lacks(self, promise: BatchPromise) -> str | None:
        """Return what is wrong with the attempt, compared with what was promised; None: it is whole."""
        if self.count != promise.count:
            return f"{self.count} messages of attempt {self.name} are here, {promise.count} were sent"
        if sum_of(piece.checksum for piece in self.pieces.values()) != promise.checksum:
            return f"the checksum of attempt {self.name} differs"
        ends: dict[tuple[str, int], int] = {}
        for topic, queue_id, first_seq in sorted(self.pieces):
            if ends.get((topic, queue_id), 0) != first_seq:
                return f"pieces of attempt {self.name} for queue {queue_id} of {topic} do not follow each other"
            ends[topic, queue_id] = first_seq + self.pieces[topic, queue_id, first_seq].count
        return None


class Application(msgspec.Struct):
    """A decided batch on its way to the consumers."""

    batch: int
    attempts: dict[str, Attempt]

    @property
    def count(self) -> int:
        """How many messages it has."""
        return sum(attempt.count for attempt in self.attempts.values())


class Decision(msgspec.Struct):
    """What a coordinator decided, and who has applied it."""

    batch: int
    parts: Parts
    digest: str
    acknowledged: set[str] = set()

    @property
    def waiting(self) -> list[str]:
        """Participants that have not applied it yet, as far as is known."""
        return sorted(self.parts.keys() - self.acknowledged)

    def names(self, attempt: str) -> bool:
        """Whether the attempt is part of the batch."""
        return any(attempt in promises for promises in self.parts.values())


class Stream(msgspec.Struct):
    """One transactional id. ``applied``, ``told`` (to the coordinator) and ``last`` (decided here) are batch ids; -1: none."""

    name: str
    coordinator: str = ""
    touched_ms: int = 0
    place: int = 0
    """Where in the log it was used last: its messages lie before. Dates do not say so, where the clock was set back."""
    applied: int = -1
    told: int = -1
    last: int = -1
    attempts: dict[tuple[int, str], Attempt] = {}
    applying: dict[int, Application] = {}
    """In the order of their batches."""
    decisions: dict[int, Decision] = {}
    given_up: dict[int, set[str]] = {}

    def heard_ms(self) -> dict[int, int]:
        """Return when each batch with undecided attempts was last heard of: while one task works, the others wait."""
        found: dict[int, int] = {}
        for attempt in self.attempts.values():
            found[attempt.batch] = max(attempt.heard_ms, found.get(attempt.batch, 0))
        return found

    def held(self) -> Iterator[Attempt]:
        """Yield every attempt with pieces in the log that are still needed."""
        yield from self.attempts.values()
        for application in self.applying.values():
            yield from application.attempts.values()

    def find(self, batch: int, attempt: str) -> Attempt | None:
        """Return an attempt that is undecided or being published."""
        found = self.attempts.get((batch, attempt))
        if found is None and batch in self.applying:
            found = self.applying[batch].attempts.get(attempt)
        return found


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
        """Return an id's stream, made when it is missing; it was used now, at a place in the log."""
        stream = self.table.get(id)
        if stream is None:
            stream = self.table[id] = Stream(id)
        stream.touched_ms, stream.place = max(stream.touched_ms, now), max(stream.place, place)
        return stream

    # ------------------------------------------------------------ pieces

    def piece(self, found: StoredPiece, *, restored: bool) -> None:
        """Take in a piece, unless its batch is decided here or it is there already."""
        stream = self.ensure(found.id, found.store_ms, found.piece.physical_offset)
        if found.batch <= stream.applied and found.batch not in stream.applying:
            return
        attempt = stream.find(found.batch, found.attempt)
        if attempt is None:
            if found.batch <= stream.applied:
                return
            attempt = Attempt(found.attempt, found.batch, found.store_ms, found.timeout_ms, found.store_ms, restored=restored)
            stream.attempts[found.batch, found.attempt] = attempt
            self.attempt_count += 1
        stream.coordinator = stream.coordinator or found.coordinator
        piece = found.piece
        if (piece.topic, piece.queue_id, piece.first_seq) not in attempt.pieces:
            attempt.add(piece)
            attempt.heard_ms = max(attempt.heard_ms, found.store_ms)
            self.piece_count += 1
            self.held_bytes += piece.size

    def _released(self, attempt: Attempt) -> None:
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
        for batch in [batch for batch in stream.given_up if batch <= step.batch]:
            del stream.given_up[batch]
        _forget_complete(stream)

    @_take.register
    def _(self, step: GivenUp, stream: Stream) -> None:
        if step.batch > stream.last:
            stream.given_up.setdefault(step.batch, set()).add(step.attempt)

    @_take.register
    def _(self, step: Acknowledged, stream: Stream) -> None:
        for batch, decision in stream.decisions.items():
            if batch <= step.batch:
                decision.acknowledged.add(step.participant)
        _forget_complete(stream)

    @_take.register
    def _(self, step: Told, stream: Stream) -> None:
        stream.told = max(stream.told, step.batch)

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
        for one in snapshot.ids:
            stream = self.table[one.name] = Stream(
                one.name, one.coordinator, one.touched_ms, place, one.applied, one.told, one.last
            )  # fmt: skip
            stream.given_up = {batch: set(names) for batch, names in one.given_up.items()}
            for saved in one.decisions:
                stream.decisions[saved.batch] = Decision(saved.batch, saved.parts, saved.digest, set(saved.acknowledged))
            for each in sorted(one.attempts, key=lambda each: each.batch):
                attempt = Attempt(each.name, each.batch, each.since_ms, each.timeout_ms, each.since_ms, each.voted, restored=True)
                self.attempt_count += 1
                if each.applying:
                    stream.applying.setdefault(each.batch, Application(each.batch, {})).attempts[each.name] = attempt
                else:
                    stream.attempts[each.batch, each.name] = attempt

    def needed_from(self) -> int | None:
        """Return the lowest physical offset of a piece that is still needed; None: there is none."""
        places = (
            next(iter(attempt.pieces.values())).physical_offset
            for stream in self.table.values()
            for attempt in stream.held()
            if attempt.pieces
        )
        return min(places, default=None)


def _saved(stream: Stream) -> SavedId:
    attempts = [
        SavedAttempt(each.batch, each.name, each.since_ms, each.timeout_ms, each.voted) for each in stream.attempts.values()
    ] + [
        SavedAttempt(application.batch, each.name, each.since_ms, each.timeout_ms, each.voted, applying=True)
        for application in stream.applying.values()
        for each in application.attempts.values()
    ]
    return SavedId(
        stream.name, stream.coordinator, stream.touched_ms, stream.applied, stream.told, stream.last, attempts,
        [SavedDecision(each.batch, each.parts, each.digest, sorted(each.acknowledged)) for each in stream.decisions.values()],
        {batch: sorted(names) for batch, names in stream.given_up.items()},
    )  # fmt: skip


def _forget_complete(stream: Stream) -> None:
    """Forget decisions that every participant has applied; of the last the digest stays, for it is the one that is asked for."""
    for batch in [batch for batch, decision in stream.decisions.items() if not decision.waiting]:
        if batch < stream.last:
            del stream.decisions[batch]
        else:
            stream.decisions[batch].parts = {}
