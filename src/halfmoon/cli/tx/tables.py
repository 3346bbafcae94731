"""Transactions as tables for people and as facts for programs. Shows; asks nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_table, span_text, time_text


def facts_of(one: Any) -> Any:
    """Return what JSON says of a transaction or of figures: its fields by their names, values inside likewise."""
    if isinstance(one, msgspec.Struct):
        return {name: facts_of(getattr(one, name)) for name in one.__struct_fields__}
    if isinstance(one, list):
        return [facts_of(each) for each in one]
    return one


def show_pending(found: Sequence[Any]) -> None:
    """Write pending transactions as a table."""
    now, several = now_ms(), len({one.broker for one in found}) > 1
    names = ("age", "group", "topic", "keys", "id", "sent", "left", "last answer", "next check", "producers")
    rows = [
        (
            span_text(now - one.since_ms), one.group, one.topic, one.keys, one.msg_id, one.checks_sent, one.checks_left,
            last_answer(one), next_check(one, now), one.producers, *([one.broker] if several else []),
        )
        for one in found
    ]  # fmt: skip
    show_table("pending", (*names, "broker") if several else names, rows)


def show_one(one: Any) -> None:
    """Write everything about one transaction."""
    now = now_ms()
    lines = {
        "state": one.state, "age": span_text(now - one.since_ms), "group": one.group, "live producers": one.producers,
        "topic": f"{one.topic}, queue {one.queue_id}", "tag": one.tag, "keys": one.keys, "id": one.msg_id,
        "broker's id": one.offset_msg_id, "broker": f"{one.broker} ({one.address})", "half queue offset": one.index,
        "size": f"{one.size_bytes:,} bytes", "born": time_text(one.born_ms), "stored": time_text(one.stored_ms),
        "checks sent": one.checks_sent, "checks left": one.checks_left, "last answer": last_answer(one),
        "next check": next_check(one, now),
    }  # fmt: skip
    for name, value in lines.items():
        say(f"{name:<18} {value!s}".rstrip())
    for each in one.checks:
        say(f"{'check':<18} {time_text(each.sent_ms)} to producer {each.producer}: {answer_text(each.answer)}")
    show_notes([one])


def show_expired(found: Sequence[Any]) -> None:
    """Write expired half messages as a table, each with its checks, and below the id by which it is resumed."""
    rows = [
        (
            time_text(one.expired_ms), one.group, one.topic, one.keys, one.reason or "not told", one.checks_sent,
            " ".join(answer_text(each.answer) for each in one.checks), _since(one), one.offset_msg_id,
        )
        for one in found
    ]  # fmt: skip
    names = ("expired", "group", "topic", "keys", "reason", "sent", "answers", "since then", "resume by")
    show_table("expired", names, rows)


def _since(one: Any) -> str:
    """Return what became of a half message since it expired."""
    return "committed" if one.committed else "resumed" if one.resumed else "nothing"


def show_notes(found: Sequence[Any]) -> None:
    """Write what brokers do not tell, each sentence once a broker."""
    for line in dict.fromkeys(f"{one.broker}: {sentence}" for one in found for sentence in one.not_told):
        say(line)


def answer_text(answer: str) -> str:
    """Return what came back on a check, in a word."""
    return {"NONE": "none", "UNKNOWN": "unknown", "COMMIT": "commit", "ROLLBACK": "rollback"}.get(answer, answer)


def last_answer(one: Any) -> str:
    """Return what came back on the last check."""
    return "not told" if one.not_told else answer_text(one.last_answer)


def next_check(one: Any, now: int) -> str:
    """Return when the next check is due."""
    if one.state != "PREPARED":
        return "none"
    if one.not_told:
        return "not told"
    if not one.checks_left:
        return f"none: expires in {span_text(one.next_check_ms - now)}"
    return f"in {span_text(one.next_check_ms - now)}" + ("" if one.producers else ", if a producer is there")


def now_ms() -> int:
    """Return the time of this machine."""
    return time.time_ns() // 1_000_000
