"""Stuck queues of a group: where one message is tried again and again, or progress stands still though a member holds the queue."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from halfmoon.client.core.admin.health.facts import NAMED_MAX, GroupFacts, queue_text
from halfmoon.model import MessageQueue
from halfmoon.results import Finding
from halfmoon.shown.texts import skip_command, span_text, tries_text

TRIES = 3
"""Failed tries of its first message, as a member reports them, from which on a queue counts as stuck at once."""
STANDS_STILL = "See in the members' logs what the listener does."


class StuckQueue(NamedTuple):
    """Stuck queue, since when, and at which message; ``member`` holds it, if one says so.

    ``tries`` and ``reason`` are those of the member's failures; None: it reports none.
    """

    since_ms: int
    queue: MessageQueue
    offset: int
    member: str | None
    tries: int | None = None
    reason: str | None = None


def stuck_findings(known: GroupFacts, now_ms: int, stuck_ms: int, explained: Collection[MessageQueue]) -> Iterator[Finding]:
    """Yield a finding for each of the queues that are stuck the longest, and one that counts the others.

    Progress stands still from ``stuck_ms`` on; not in the queues that other findings have ``explained``.
    """
    found = sorted(_stuck_queues(known, now_ms, stuck_ms, explained))
    for each in found[:NAMED_MAX]:
        span, do = span_text(now_ms - each.since_ms), _remedy(known.group, each)
        if each.tries is not None:
            why = f": {each.reason}, {tries_text(each.tries)}, {span}"
        elif each.member is not None:
            why, do = f" for {span}: member {each.member} reports no failure", STANDS_STILL
        else:
            why, do = f" for {span}: no member reports why", STANDS_STILL
        where = f"Q{queue_text(each.queue)[1:]}"
        yield Finding(
            "stuck", f"{where} is stuck at offset {each.offset:,}{why}.", do, queue=each.queue, offset=each.offset,
            since_ms=each.since_ms, tries=each.tries, reason=each.reason,
        )  # fmt: skip
    if (more := len(found) - NAMED_MAX) > 0:
        yield Finding("stuck", f"{more:,} more {'queue is' if more == 1 else 'queues are'} stuck.", STANDS_STILL)


def _remedy(group: str, stuck: StuckQueue) -> str:
    return f"Repair the listener, or skip the message: `{skip_command(group, stuck.queue, stuck.offset)}`."


def _stuck_queues(known: GroupFacts, now_ms: int, stuck_ms: int, explained: Collection[MessageQueue]) -> Iterator[StuckQueue]:
    if not known.members or known.model == "broadcasting":
        return
    answers = known.answers()
    holders = {queue: (member, state) for member, info in answers.items() for queue, state in info.mq_table.items()}
    maybe_held = len(answers) < len(known.members)
    for queue in known.late():
        member, state = holders.get(queue, (None, None))
        unmoved_ms = known.queues[queue].unmoved_ms
        since_ms = None if unmoved_ms is None else now_ms - unmoved_ms
        if state is not None and (state.failed_tries or 0) >= TRIES:
            yield _failing(queue, known.queues[queue].consumer_offset, member, state, now_ms if since_ms is None else since_ms)
        elif since_ms is not None and now_ms - since_ms >= stuck_ms and queue not in explained and (member or maybe_held):
            yield StuckQueue(since_ms, queue, known.queues[queue].consumer_offset, member)


def _failing(queue: MessageQueue, offset: int, member: str | None, state: Any, since_ms: int) -> StuckQueue:
    """Return the queue that a message holds, as its member reports. ``since_ms``: when progress stood still at the latest."""
    began_ms = min(since_ms, state.failed_since_ms or since_ms)
    offset = offset if state.failed_offset is None else state.failed_offset
    return StuckQueue(began_ms, queue, offset, member, state.failed_tries, state.failed_reason or "no reason given")
