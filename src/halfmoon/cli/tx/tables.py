"""Transactions as tables for people and as facts for programs. Shows; asks nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_table
from halfmoon.shown.texts import count_text, span_text, time_text

ANSWERS = {
    "NONE": "none", "UNKNOWN": "unknown", "COMMIT": "commit", "ROLLBACK": "rollback", "OPEN": "open", "NOT_MINE": "not mine",
}  # fmt: skip


WIDTH = 80
"""Columns of a table that is folded, on a terminal and elsewhere."""


def show_pending(transactions: Sequence[Any]) -> None:
    """Write pending transactions as a table."""
    now, several = now_ms(), len({tx.broker for tx in transactions}) > 1
    rows = [
        (
            span_text(now - tx.since_ms), tx.group, tx.topic, keys_text(tx), tx.msg_id,
            (f"{tx.broker}: " if several else "") + checks_text(tx, now),
        )
        for tx in transactions
    ]  # fmt: skip
    show_table("pending", ("age", "group", "topic", "keys", "id", "state of checks"), rows, width_max=WIDTH)


def keys_text(tx: Any) -> str:
    """Return the keys but for the id, which events give as a key as well."""
    return " ".join(key for key in tx.keys.split() if key != tx.msg_id)


def checks_text(tx: Any, now: int) -> str:
    """Return how many checks were sent, the last answer, the next check, and how many producers could answer."""
    if tx.not_reported:
        return "not reported"
    last = f", the last answer {last_answer(tx)}" if tx.last_answer else ""
    online = f"; {count_text(tx.producers, 'producer')} online" if tx.producers else ""
    return f"{tx.checks_sent:,} of {tx.checks_sent + tx.checks_left:,}{last}; next {next_check(tx, now)}{online}"


def show_one(tx: Any) -> None:
    """Write everything about one transaction."""
    now = now_ms()
    lines = {
        "state": tx.state, "age": span_text(now - tx.since_ms), "group": tx.group, "live producers": tx.producers,
        "topic": f"{tx.topic}, queue {tx.queue_id}", "tag": tx.tag, "keys": tx.keys, "id": tx.msg_id,
        "broker's id": tx.offset_msg_id, "broker": f"{tx.broker} ({tx.address})", "half queue offset": tx.index,
        "size": f"{tx.size_bytes:,} bytes", "born": time_text(tx.born_ms), "stored": time_text(tx.stored_ms),
        "checks sent": tx.checks_sent, "checks left": tx.checks_left, "last answer": last_answer(tx),
        "next check": next_check(tx, now),
    }  # fmt: skip
    for name, value in lines.items():
        say(f"{name:<18} {value!s}".rstrip())
    for check in tx.checks:
        asked = check.client or f"producer {check.producer}, which is not connected"
        say(f"{'check':<18} {time_text(check.sent_ms)} to {asked}: {answer_text(check.answer)}")
    if any(check.answer == "NOT_MINE" for check in tx.checks):
        say(f"{'not mine':<18} that producer has no check of it, or another database: its log says which")
    show_notes([tx])


def show_expired(found: Sequence[Any]) -> None:
    """Write expired half messages as a table, each with its checks, and below the id by which it is resumed."""
    rows = [
        (
            time_text(one.expired_ms), one.group, one.topic, one.keys, one.reason or "not reported", one.checks_sent,
            " ".join(answer_text(each.answer) for each in one.checks), since_of(one), one.offset_msg_id,
        )
        for one in found
    ]  # fmt: skip
    names = ("expired", "group", "topic", "keys", "reason", "sent", "answers", "since then", "resume by")
    show_table("expired", names, rows)


def since_of(one: Any) -> str:
    """Return the state of a half message since it expired."""
    return "committed" if one.committed else "resumed" if one.resumed else "nothing"


def show_notes(transactions: Sequence[Any]) -> None:
    """Write which facts brokers do not report, each sentence once a broker."""
    for line in dict.fromkeys(f"{tx.broker}: {sentence}" for tx in transactions for sentence in tx.not_reported):
        say(line)


def show_figures(brokers: Sequence[Any]) -> None:
    """Write figures of every broker as tables."""
    for stats in brokers:
        oldest = "" if stats.oldest_ms < 0 else f", the oldest for {span_text(stats.now_ms - stats.oldest_ms)}"
        say(f"{stats.broker}: {stats.pending_count:,} pending{oldest}")
        groups = {group.group: group for group in stats.groups}
        rows = [_group_row(stats, name, groups.get(name)) for name in sorted({*groups, *stats.per_second})]
        if rows:
            show_table("groups", ("group", "pending", "oldest", "producers", "commits/s", "rollbacks/s"), rows)
        if stats.counters:
            counters = [(name.replace("_", " "), count) for name, count in stats.counters.items()]
            show_table("since the start", ("what", "count"), counters)
    show_notes(brokers)


def _group_row(stats: Any, name: str, group: Any) -> list[object]:
    """Return the figures of a producer group; ``group`` is None where it has nothing pending."""
    rates = stats.per_second.get(name, {})
    per_second = [f"{rates.get(kind, 0.0):.1f}" if stats.counters else "not reported" for kind in ("commits", "rollbacks")]
    if group is None:
        return [name, 0, "", "", *per_second]
    age = span_text(stats.now_ms - group.oldest_ms) if group.oldest_ms >= 0 else ""
    return [name, group.pending, age, group.producers, *per_second]


def answer_text(answer: str) -> str:
    """Return the answer to a check, in a word."""
    return ANSWERS.get(answer, answer)


def last_answer(tx: Any) -> str:
    """Return the answer to the last check."""
    return "not reported" if tx.not_reported else answer_text(tx.last_answer)


def next_check(tx: Any, now: int) -> str:
    """Return the time until the next check."""
    if tx.state != "PREPARED":
        return "none"
    if tx.not_reported:
        return "not reported"
    if not tx.checks_left:
        return f"none: expires in {span_text(tx.next_check_ms - now)}"
    return f"in {span_text(tx.next_check_ms - now)}" + ("" if tx.producers else ", if a producer is there")


def now_ms() -> int:
    """Return the time of this machine."""
    return time.time_ns() // 1_000_000
