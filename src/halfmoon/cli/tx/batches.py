"""`halfmoon tx batches`: transactional ids of batch transactions, their last batches and undecided attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import halfmoon
from halfmoon.cli.shared.app import Argument
from halfmoon.cli.shared.lines import say, say_failing
from halfmoon.cli.shared.options import LOCAL, Json, NameServer
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.shown.texts import facts_of, span_text


def batches(
    name: Annotated[str | None, Argument(metavar="[ID]", help="Only this transactional id, with its attempts.")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """List batch transactions by transactional id: the last batch, undecided attempts and their age.

    Example: halfmoon tx batches nightly-load
    """
    failing: list[str] = []
    with halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = admin.batches(name, failing=failing)
    say_failing(failing)
    if as_json:
        show_json([facts_of(status) for status in brokers])
        return sum(len(status.ids) for status in brokers)
    _show_ids(brokers)
    if name is not None:
        _show_attempts(brokers)
    for status in brokers:
        if not status.supported:
            say(f"{status.broker} does not know batch transactions")
    return sum(len(status.ids) for status in brokers)


def _show_ids(brokers: Sequence[Any]) -> None:
    rows = [
        (
            batch.transactional_id, status.broker, batch.coordinator or status.broker, _number(batch.decided),
            _number(batch.applied), batch.attempt_count, f"{batch.size_bytes:,}", _oldest(batch), batch.aborted,
            ", ".join(batch.waiting), span_text(batch.idle_ms),
        )
        for status in brokers
        for batch in status.ids
    ]  # fmt: skip
    names = ("id", "broker", "coordinator", "decided", "applied", "undecided", "bytes", "oldest", "aborted", "waits for", "idle")
    show_table("batch transactions", names, rows)


def _show_attempts(brokers: Sequence[Any]) -> None:
    rows = [
        (
            attempt.batch_id,
            attempt.attempt,
            status.broker,
            attempt.state,
            attempt.count,
            f"{attempt.size_bytes:,}",
            span_text(attempt.age_ms),
        )
        for status in brokers
        for batch in status.ids
        for attempt in batch.attempts
    ]
    if rows:
        show_table("undecided attempts", ("batch", "attempt", "broker", "state", "messages", "bytes", "age"), rows)


def _number(batch: int) -> str:
    return "" if batch < 0 else str(batch)


def _oldest(batch: Any) -> str:
    return span_text(max(attempt.age_ms for attempt in batch.attempts)) if batch.attempts else ""
