"""Brokers without one of the rules of batch transactions. Each breaks what the rule protects, as a real mistake would."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from halfmoon.broker.batches.batches import promises_of
from halfmoon.broker.batches.publishing import GIVEN_FLAGS
from halfmoon.broker.batches.records import StoredPiece, Voted
from halfmoon.broker.broker import Broker
from halfmoon.broker.delay.delay import RequestedDelay
from halfmoon.broker.request import Reply, Request
from halfmoon.effects import Op
from halfmoon.instant import Steady
from halfmoon.store.entries import prepared_offset
from halfmoon.store.store import Draft
from halfmoon.wire.bodies.batches import BatchPromise, coordinator_of
from halfmoon.wire.headers.batch import ApplyBatch, DecideBatch, VoteBatch, VoteBatchReply
from tests.simulation.faulty import faulty_broker


@faulty_broker
def changeable(broker: Any) -> None:
    """Rule 1: a coordinator that records every decision anew."""
    broker.batches.coordinator.is_recorded = lambda stream, batch: False  # type: ignore[method-assign]


def guessing(owner: str, masters: dict[str, str], *_: Any) -> Op[str]:
    """A client that takes for the coordinator who it would be among the brokers of today."""
    yield from ()
    return coordinator_of(owner, masters)


@faulty_broker
def deciding(broker: Any) -> None:
    """A broker that decides batches of an id that another one coordinates."""
    batches = broker.batches
    decide, name = batches.coordinator.decide, broker.settings.name

    def decided(request: Request) -> Reply | None:
        stream = batches.streams.ensure(request.header(DecideBatch).transactional_id, request.now.date, broker.store.end_offset)
        told, stream.coordinator = stream.coordinator, name
        try:
            return decide(request)
        finally:
            stream.coordinator = told

    broker._handlers[31032] = decided


@faulty_broker
def showing(broker: Any) -> None:
    """A broker that publishes a batch where everybody looks on."""
    broker.batches.publishing._hold = lambda id, batch, progress: None  # type: ignore[method-assign]


@faulty_broker
def showing_after_a_start(broker: Any) -> None:
    """A broker that goes on with a batch after a start, and shows meanwhile what of it was in the log."""
    publishing = broker.batches.publishing
    for id, batch in set(publishing._held.values()):
        publishing.release(id, batch)


def reopening(*arguments: Any) -> Any:
    """Rule 6: a participant that takes pieces and votes of what was decided, and then applies what there is as if it were new."""
    broker = trusting_apply(*arguments)
    batches = broker.batches
    batches.is_decided = lambda stream, batch: False  # type: ignore[method-assign]
    take_piece, apply = batches.streams.piece, batches.apply

    def piece(found: StoredPiece, heard: Steady, *, restored: bool) -> None:
        stream = batches.streams.ensure(found.id, found.store_ms, found.piece.physical_offset)
        applied, stream.applied = stream.applied, -1
        take_piece(found, heard, restored=restored)
        stream.applied = applied

    def applied_again(request: Request) -> Reply | None:
        h = request.header(ApplyBatch)
        stream = batches.streams.get(h.transactional_id)
        if stream is not None and any((h.batch_id, name) in stream.attempts for name in promises_of(request)):
            stream.applied = min(stream.applied, h.batch_id - 1)
        return apply(request)

    batches.streams.piece = piece  # type: ignore[method-assign]
    broker._handlers[31033] = applied_again
    return broker


@faulty_broker
def repeating(broker: Any) -> None:
    """Rule 2: a broker that does not look for what is published already."""
    broker.batches.publishing._already = lambda application: set()  # type: ignore[method-assign]
    for progress in broker.batches.publishing._progress.values():  # the start has looked
        progress.already.clear()


@faulty_broker
def trusting(broker: Any) -> None:
    """Rule 3: a broker that votes for attempts without looking at them, and publishes what there is."""
    batches = broker.batches

    def vote(request: Request) -> Reply:
        h = request.header(VoteBatch)
        stream = batches.streams.get(h.transactional_id)
        names = [] if stream is None else [name for batch, name in stream.attempts if batch == h.batch_id]
        batches.write(Voted(h.transactional_id, h.batch_id, names, h.coordinator), request.now)
        return Reply(header=VoteBatchReply(result="YES"))

    begin = batches.begin

    def began(stream: Any, batch: int, coordinator: str, promises: dict[str, BatchPromise], now: int) -> None:
        there = {name: stream.attempts[batch, name] for name in promises if (batch, name) in stream.attempts}
        begin(stream, batch, coordinator, {name: _promise(attempt) for name, attempt in there.items()}, now)

    broker._handlers[31031] = vote
    batches.begin = began  # type: ignore[method-assign]


def _promise(attempt: Any) -> BatchPromise:
    return BatchPromise(attempt.count, sum(piece.checksum for piece in attempt.pieces.values()) & 0xFFFFFFFF)


def forgiving(*arguments: Any) -> Any:
    """Rule 4: a coordinator that answers ABORT and does not write it down; participants publish what there is."""
    broker = trusting_apply(*arguments)
    broker.batches.coordinator.abort = lambda id, batch, attempt, now: None
    return broker


@faulty_broker
def trusting_apply(broker: Any) -> None:
    """A broker that applies what there is of a batch, without looking whether it is all."""
    batches = broker.batches
    begin = batches.begin

    def began(stream: Any, batch: int, coordinator: str, promises: dict[str, BatchPromise], now: int) -> None:
        there = {name: stream.attempts[batch, name] for name in promises if (batch, name) in stream.attempts}
        begin(stream, batch, coordinator, {name: _promise(attempt) for name, attempt in there.items()}, now)

    batches.begin = began  # type: ignore[method-assign]


class Unfinished(Broker):
    """Rule 5: a broker that takes a batch for published whose application a start finds in the log."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for stream in self.batches._publishing.values():
            stream.applying.clear()
        self.batches._publishing.clear()


def presuming(*arguments: Any) -> Any:
    """Rule 7: a participant that drops an attempt when its time is over, and asks nobody."""
    broker = trusting_apply(*arguments)
    recovery = broker.batches.recovery
    recovery.ask = lambda stream, attempt, now: broker.batches.drop(stream.name, attempt, now)
    return broker


def forgetful(*arguments: Any) -> Any:
    """Rule 8: a coordinator that forgets whom a decision names as soon as it is told."""
    broker = trusting_apply(*arguments)
    coordinator, decide = broker.batches.coordinator, broker.batches.coordinator.decide

    def decided(request: Request) -> Any:
        reply = decide(request)
        for stream in broker.batches.streams.table.values():
            for each in stream.decisions.values():
                each.parts = {}
        return reply

    coordinator.decide = decided
    broker._handlers[31032] = decided
    return broker


# ---------------------------------------------------------------- messages that ask to come later, compressed ones


@faulty_broker
def hasty(broker: Any) -> None:
    """A broker that publishes what asks to come later at once."""
    broker.batches.publishing._requested_delay = lambda draft, now: None  # type: ignore[method-assign]


@faulty_broker
def counting_from_the_piece(broker: Any) -> None:
    """A broker for which the delay of a level begins when the piece comes, not when the batch is published."""
    delays = broker.delays

    def put(topic: str, queue_id: int, delay: RequestedDelay, draft: Draft, now: int, identity: int) -> None:
        deliver_ms = delay.deliver_ms or draft[4] + delays.levels.delay_ms(delay.level)
        delays.timer.park(topic, queue_id, deliver_ms, draft, now, identity=identity)

    delays.put = put  # type: ignore[method-assign]


@faulty_broker
def parking_again(broker: Any) -> None:
    """A broker that does not look, after a start, for what of a batch is parked already."""
    broker.batches.publishing._delays = _Blind(broker.delays)  # type: ignore[assignment]
    parked = {prepared_offset(record) for record in broker.delays.parked_behind(0)}
    for progress in broker.batches.publishing._progress.values():  # the start has looked
        progress.already -= parked


class _Blind:
    """Delays of which one sees nothing that is parked."""

    def __init__(self, delays: Any) -> None:
        self._delays = delays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delays, name)

    def parked_behind(self, physical_offset: int) -> list[memoryview]:
        return []


@faulty_broker
def parking_without_identity(broker: Any) -> None:
    """A broker whose parked records do not carry who they are."""
    put = broker.delays.put
    broker.delays.put = lambda *wished, identity: put(*wished, identity=0)  # type: ignore[method-assign]


@faulty_broker
def parking_for_the_first_queue(broker: Any) -> None:
    """A broker that parks everything for queue 0."""
    put = broker.delays.put
    broker.delays.put = lambda topic, queue_id, *rest, identity: put(topic, 0, *rest, identity=identity)  # type: ignore[method-assign]


@faulty_broker
def plain(broker: Any) -> None:
    """A broker that forgets that the messages of a piece are compressed."""
    journal = broker.batches._journal
    write = journal.write_piece

    def write_piece(*piece: Any) -> Any:
        *rest, sys_flag, now = piece
        return write(*rest, sys_flag & ~GIVEN_FLAGS, now)

    journal.write_piece = write_piece  # type: ignore[method-assign]


def weekly(*arguments: Any) -> Any:
    """A broker that forgets an id that is idle for a week when it needs the room, wherever its messages are."""
    broker = by_dates(*arguments)
    broker.store.earliest_ms = lambda: broker.store._date  # type: ignore[method-assign]
    return broker


@faulty_broker
def by_dates(broker: Any) -> None:
    """A broker that takes the dates of an id and of the oldest record for a proof that the id's messages have left the log."""
    streams = broker.batches.streams
    ensure = streams.ensure
    streams.ensure = lambda id, now, place: ensure(id, now, -1)  # type: ignore[method-assign]
    for stream in streams.table.values():
        stream.place = -1


@faulty_broker
def clinging(broker: Any) -> None:
    """A broker whose log is kept for ids that are forgotten."""
    batches = broker.batches
    take = batches._take

    def taken(step: Any, now: int, place: int) -> None:
        kept_from = batches._kept_from
        take(step, now, place)
        batches._kept_from = kept_from if batches._kept_from is None else batches._kept_from

    batches._take = taken


@faulty_broker
def without_reserve(broker: Any) -> None:
    """A broker whose full disk refuses also what would let log files go."""
    broker.store.maintenance.making_room = lambda pin: nullcontext()
