"""Brokers without one of the rules of batch transactions. Each breaks what the rule protects, as a real mistake would."""

from __future__ import annotations

from typing import Any

from halfmoon.broker.batches import promises_of
from halfmoon.broker.batchrecords import PieceFound, Voted
from halfmoon.broker.broker import Broker
from halfmoon.broker.request import Reply, Request
from halfmoon.wire.batches import BatchPromise
from halfmoon.wire.headers.batch import ApplyBatch, VoteBatch, VoteBatchReply


def changeable(*arguments: Any) -> Any:
    """Rule 1: a coordinator that records every decision anew."""
    broker = Broker(*arguments)
    broker.batches.coordinator.is_recorded = lambda stream, batch: False  # type: ignore[method-assign]
    return broker


def reopening(*arguments: Any) -> Any:
    """Rule 6: a participant that takes pieces and votes of what was decided, and then applies what there is as if it were new."""
    broker = trusting_apply(*arguments)
    batches = broker.batches
    batches.is_decided = lambda stream, batch: False  # type: ignore[method-assign]
    take_piece, apply = batches.streams.piece, batches.apply

    def piece(found: PieceFound, *, restored: bool) -> None:
        stream = batches.streams.ensure(found.id, found.store_ms)
        applied, stream.applied = stream.applied, -1
        take_piece(found, restored=restored)
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


def repeating(*arguments: Any) -> Any:
    """Rule 2: a broker that does not look for what is published already."""
    broker = Broker(*arguments)
    broker.batches.publishing._already = lambda application: set()  # type: ignore[method-assign]
    return broker


def trusting(*arguments: Any) -> Any:
    """Rule 3: a broker that votes for attempts without looking at them, and publishes what there is."""
    broker = Broker(*arguments)
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
    return broker


def _promise(attempt: Any) -> BatchPromise:
    return BatchPromise(attempt.count, sum(piece.checksum for piece in attempt.pieces.values()) & 0xFFFFFFFF)


def forgiving(*arguments: Any) -> Any:
    """Rule 4: a coordinator that answers ABORT and does not write it down; participants publish what there is."""
    broker = trusting_apply(*arguments)
    broker.batches.coordinator.give_up = lambda id, batch, attempt, now: None
    return broker


def trusting_apply(*arguments: Any) -> Any:
    """A broker that applies what there is of a batch, without looking whether it is all."""
    broker = Broker(*arguments)
    batches = broker.batches
    begin = batches.begin

    def began(stream: Any, batch: int, coordinator: str, promises: dict[str, BatchPromise], now: int) -> None:
        there = {name: stream.attempts[batch, name] for name in promises if (batch, name) in stream.attempts}
        begin(stream, batch, coordinator, {name: _promise(attempt) for name, attempt in there.items()}, now)

    batches.begin = began  # type: ignore[method-assign]
    return broker


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
    doubt = broker.batches.doubt
    doubt.ask = lambda stream, attempt, now: broker.batches.drop(stream.name, attempt, now)
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
