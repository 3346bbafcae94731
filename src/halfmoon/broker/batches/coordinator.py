"""The coordinator of batch transactions: decides once which attempts a batch consists of, and answers for the outcome of each.

A decision is one durable record; the first wins. When a participant gives an attempt up, that is recorded before the reply, and no
decision may name the attempt any more. A decision is kept until every participant has reported it as applied. Brokers learn who
coordinates an id before its first message; a broker decides only what it coordinates.
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.broker.batches.records import Aborted, Acknowledged, Coordinated, Decided, Step
from halfmoon.broker.batches.state import Decision, Stream, Streams
from halfmoon.broker.request import Reply, Request
from halfmoon.broker.send.pending_replies import PendingReplies
from halfmoon.errors import InvalidParameter, SystemBusy
from halfmoon.instant import Instant
from halfmoon.wire.bodies.batches import ATTEMPTS_MAX, BATCH_BODY, BatchDecision
from halfmoon.wire.headers.batch import (
    CoordinateBatches,
    CoordinateBatchesReply,
    DecideBatch,
    DecideBatchReply,
    ResolveBatch,
    ResolveBatchReply,
)
from halfmoon.wire.json import from_json, to_json

UNAPPLIED_MAX = 64
"""Decisions of one id that participants have not applied yet."""
ABORTED_MAX = 20_000
"""Attempts of undecided batches of one id that were aborted."""
DIGEST_MAX = 128


class Coordinator:
    """The service of the broker ``name``.

    ``write`` writes a step and carries it out; ``stream`` returns an id's stream, created if it is missing.
    """

    def __init__(
        self, name: str, streams: Streams, pending_replies: PendingReplies, write: Callable[[Step, Instant], None],
        stream: Callable[[str, Instant], Stream], counters: dict[str, int],
    ) -> None:  # fmt: skip
        self._name, self._streams, self._pending_replies, self._write = name, streams, pending_replies, write
        self._stream, self._counters = stream, counters

    def coordinate(self, request: Request) -> Reply | None:
        """Answer who coordinates an id, or record it (31037)."""
        h = request.header(CoordinateBatches)
        _check_names(h.transactional_id, *filter(None, (h.coordinator, h.instead_of)))
        self._pending_replies.check_room()
        stream = self._streams.get(h.transactional_id)
        known, last = ("", -1) if stream is None else (stream.coordinator, stream.last)
        if h.coordinator and h.coordinator != known and self.may_change(known, last, h.instead_of):
            self._stream(h.transactional_id, request.now)
            self._write(Coordinated(h.transactional_id, -1, h.coordinator), request.now)
            known = h.coordinator
        self._pending_replies.reply(request, Reply(header=CoordinateBatchesReply(coordinator=known, last=last)), durable=True)
        return None

    def may_change(self, known: str, last: int, instead_of: str | None) -> bool:
        """Whether another broker may coordinate an id: none is known, or the known one is replaced and has not decided here."""
        return not known or (known == instead_of and not (known == self._name and last >= 0))

    def decide(self, request: Request) -> Reply | None:
        """Record a decision, or answer the recorded one (31032)."""
        h, now = request.header(DecideBatch), request.now
        decision = from_json(BatchDecision, request.command.body, bounds=BATCH_BODY)
        _check(h, decision)
        self._pending_replies.check_room()
        stream = self._streams.get(h.transactional_id)
        if stream is not None and self.is_recorded(stream, h.batch_id):
            stream = self._stream(h.transactional_id, now)  # it is in use
            self._counters["already"] += 1
            self._pending_replies.reply(request, _recorded(stream, h.batch_id, "ALREADY"), durable=True)
            return None
        if stream is None or stream.coordinator != self._name:  # an unknown id is not created for it
            self._counters["refused"] += 1
            known, last = ("no broker", -1) if stream is None else (stream.coordinator or "no broker", stream.last)
            reason = f"{known} coordinates {h.transactional_id}, not {self._name}"
            return Reply(header=DecideBatchReply(result="REFUSED", last=last, reason=reason))
        stream = self._stream(h.transactional_id, now)
        aborted = stream.aborted.get(h.batch_id, set())
        named = aborted.intersection(*[{name for promises in decision.participants.values() for name in promises}])
        if named:
            self._counters["refused"] += 1
            reason = f"attempt {min(named)} was aborted"
            return Reply(header=DecideBatchReply(result="REFUSED", last=stream.last, reason=reason))
        if sum(bool(d.waiting) for d in stream.decisions.values()) >= UNAPPLIED_MAX:
            raise SystemBusy(f"{UNAPPLIED_MAX} batches of {h.transactional_id} are decided and not applied everywhere")
        self._write(Decided(h.transactional_id, h.batch_id, decision.participants, h.digest), now)
        self._counters["decided"] += 1
        self._pending_replies.reply(request, _recorded(stream, h.batch_id, "DECIDED"), durable=True)
        return None

    def is_recorded(self, stream: Stream, batch: int) -> bool:
        """Whether a batch is decided."""
        return batch <= stream.last

    def resolve(self, request: Request) -> Reply | None:
        """Answer a participant the outcome of an attempt, or record what it has applied (31034)."""
        h = request.header(ResolveBatch)
        self._pending_replies.check_room()
        if h.applied:
            self.acknowledge(h.transactional_id, h.batch_id, h.participant, request.now)
            self._pending_replies.reply(request, Reply(header=ResolveBatchReply(result="NOTED")), durable=True)
            return None
        if not h.attempt:
            raise InvalidParameter("an attempt has a name")
        result, decision = self.verdict(h.transactional_id, h.batch_id, h.attempt, request.now, abort=h.abort)
        body = b"" if decision is None else to_json(BatchDecision(decision.parts))
        reply = Reply(0, None, ResolveBatchReply(result=result), body)
        if result == "UNDECIDED":
            return reply
        self._pending_replies.reply(request, reply, durable=True)
        return None

    def acknowledge(self, id: str, batch: int, participant: str, now: Instant) -> None:
        """Record that a participant has applied everything up to a batch."""
        stream = self._streams.get(id)
        waiting = () if stream is None else stream.decisions.values()
        if any(decision.batch <= batch and participant in decision.waiting for decision in waiting):
            self._write(Acknowledged(id, batch, participant), now)

    def verdict(self, id: str, batch: int, attempt: str, now: Instant, *, abort: bool) -> tuple[str, Decision | None]:
        """Return COMMIT with the decision, ABORT or UNDECIDED; valid only once the log is durable up to its present end.

        With ``abort`` an attempt of an undecided batch is aborted, and so the answer is ABORT.
        """
        stream = self._streams.get(id)
        self._counters["resolved"] += 1
        if stream is not None and self.is_recorded(stream, batch):
            decision = stream.decisions.get(batch)
            if decision is not None and decision.names(attempt):
                return "COMMIT", decision
            return "ABORT", None
        if not abort:
            return "UNDECIDED", None
        stream = self._stream(id, now)
        known = stream.aborted.get(batch, set())
        if attempt not in known:
            if sum(map(len, stream.aborted.values())) >= ABORTED_MAX:
                # Asked again later. To forget an older one instead would break the promise about it.
                return "UNDECIDED", None
            self.abort(id, batch, attempt, now)
        return "ABORT", None

    def abort(self, id: str, batch: int, attempt: str, now: Instant) -> None:
        """Record that no decision will name an attempt."""
        self._write(Aborted(id, batch, attempt), now)
        self._counters["aborted"] += 1


def _check(header: DecideBatch, decision: BatchDecision) -> None:
    _check_names(header.transactional_id, *decision.participants)
    if header.batch_id < 0:
        raise InvalidParameter("a batch id is 0 or more")
    if len(header.digest) > DIGEST_MAX:
        raise InvalidParameter(f"a digest has up to {DIGEST_MAX} characters")
    if sum(map(len, decision.participants.values())) > ATTEMPTS_MAX:
        raise InvalidParameter(f"a decision names up to {ATTEMPTS_MAX} attempts")


def _check_names(*names: str) -> None:
    if not all(0 < len(name) <= 255 and name.isprintable() for name in names):
        raise InvalidParameter("a transactional id and a broker have names of 1 to 255 printable characters")


def _recorded(stream: Stream, batch: int, result: str) -> Reply:
    """Return the recorded decision as a reply."""
    decision = stream.decisions.get(batch)
    digest = None if decision is None else decision.digest
    complete = decision is None or not decision.waiting
    header = DecideBatchReply(result=result, last=stream.last, digest=digest, complete=complete)
    return Reply(0, None, header, b"" if decision is None else to_json(BatchDecision(decision.parts)))
