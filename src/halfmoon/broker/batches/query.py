"""Queries about batch transactions for operators: ids, their undecided attempts, counters. Changes nothing."""

from __future__ import annotations

from bisect import bisect_right

from halfmoon.broker.batches.publishing import Publishing
from halfmoon.broker.batches.state import AttemptState, Stream, Streams
from halfmoon.broker.request import Reply, Request
from halfmoon.wire.bodies.batches import BatchAttempt, BatchId, BatchList
from halfmoon.wire.headers.batch import ListBatches
from halfmoon.wire.json import to_json

IDS_MAX, ATTEMPTS_SHOWN = 1000, 1000
"""Ids of one answer, and attempts of one id in it."""


class Listing:
    """The service that answers 31036. ``broker`` is this one's name."""

    def __init__(self, broker: str, streams: Streams, publishing: Publishing, counters: dict[str, int]) -> None:
        self._broker, self._streams, self._publishing, self._counters = broker, streams, publishing, counters

    def list(self, request: Request) -> Reply:
        """Return ids in the order of their names, or one."""
        h, streams = request.header(ListBatches), self._streams
        if h.transactional_id is not None:
            names = [h.transactional_id] if streams.get(h.transactional_id) is not None else []
        else:
            names = sorted(streams.table)
        begin = 0 if h.after is None else bisect_right(names, h.after)
        count = max(1, min(h.count, IDS_MAX))
        shown = names[begin : begin + count]
        body = BatchList(
            self._broker, request.now.date, [_shown(streams.table[name], request.now.date) for name in shown],
            shown[-1] if begin + count < len(names) else None, len(streams), streams.attempt_count, streams.held_bytes,
            self.counters(),
        )  # fmt: skip
        return Reply(body=to_json(body))

    def counters(self) -> dict[str, int]:
        """Return the numbers of events since the start, by name."""
        return {**self._counters, "published": self._publishing.published, "skipped": self._publishing.skipped}

    def texts(self) -> dict[str, str]:
        """Return the fields for runtime information (28)."""
        return {
            "batchIds": str(len(self._streams)), "batchAttemptsUndecided": str(self._streams.attempt_count),
            "batchBytesUndecided": str(self._streams.held_bytes),
        }  # fmt: skip


def _shown(stream: Stream, now: int) -> BatchId:
    held = list(stream.held())
    waiting = sorted({participant for decision in stream.decisions.values() for participant in decision.waiting})
    return BatchId(
        stream.name, stream.coordinator, stream.applied, stream.last, max(0, now - stream.touched_ms),
        sum(map(len, stream.aborted.values())), waiting, [_attempt(stream, attempt, now) for attempt in held[:ATTEMPTS_SHOWN]],
        len(held), sum(attempt.size_bytes for attempt in held),
    )  # fmt: skip


def _attempt(stream: Stream, attempt: AttemptState, now: int) -> BatchAttempt:
    state = "APPLYING" if attempt.batch in stream.applying else "VOTED" if attempt.voted else "PREPARED"
    return BatchAttempt(attempt.batch, attempt.name, state, attempt.count, attempt.size_bytes, max(0, now - attempt.since_ms))
