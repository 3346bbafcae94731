"""Transactions: what is pending and why, one of them, what expired, and batch transactions. Operators ask, decide and resume."""

from __future__ import annotations

from typing import Any

from halfmoon.console.page import PAGE_SIZE, Asked, Change, Done, Facts, Page
from halfmoon.console.render import at
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.shown.texts import facts_of, span_text

AGES = {"any": 0, "1m": 60_000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000}
"""How old what is shown is at least, in ms."""
CURSOR_LENGTH_MAX = 8_000
GROUPS_MAX = 20
"""Groups of a broker that are shown: those with the most pending."""
PREVIEW_BYTES = 2048
EXPIRED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"

ANSWERS = {
    "UNKNOWN": "a producer answered that it does not know the outcome (UNKNOWN)",
    "OPEN": "a producer answered that the transaction is still open",
    "NONE": "a producer was asked and has not answered",
}


def why_pending(transaction: Any, now_ms: int) -> str:
    """Return in words why a transaction waits for a decision."""
    if not transaction.not_reported and not transaction.checks_left:
        return f"no check brought a decision and none is left: it expires in {span_text(transaction.next_check_ms - now_ms)}"
    if not transaction.producers:
        return "no producer of its group is connected to its broker: there is nobody to ask"
    if transaction.not_reported:
        return "its producer has not decided; this broker does not report what was answered to checks"
    last = transaction.last_answer
    if not last:
        return "its producer has not decided, and the first check is not due yet"
    return ANSWERS.get(last, f"a producer answered {last}; if it stays pending, the broker's log says why")


def _row(transaction: Any, now_ms: int) -> Facts:
    pending = transaction.state == "PREPARED"
    facts: Facts = facts_of(transaction)
    return {
        **facts, "age_ms": max(0, now_ms - transaction.since_ms), "last_answer": transaction.last_answer,
        "why": why_pending(transaction, now_ms) if pending else "",
        "next_check_in_ms": max(0, transaction.next_check_ms - now_ms) if pending and transaction.next_check_ms > 0 else None,
    }  # fmt: skip


def _figures(stats: Any) -> Facts:
    groups = sorted(stats.groups, key=lambda group: -group.pending)
    counts = list(stats.decided_after)
    while len(counts) > 6 and not counts[-1]:
        counts.pop()
    return {
        **facts_of(stats), "groups": facts_of(groups[:GROUPS_MAX]), "groups_left_out": len(groups[GROUPS_MAX:]),
        "time_to_decision": [(_bound(number), count) for number, count in enumerate(counts)], "decided": sum(counts),
    }  # fmt: skip


def _bound(number: int) -> str:
    """Return from where on a bucket counts."""
    seconds = 2**number if number else 0
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


async def pending(asked: Asked) -> Facts:
    """Return pending transactions, the oldest first; on the first page also the figures of all brokers."""
    after = asked.text("after", "", length_max=CURSOR_LENGTH_MAX) or None
    older_than_ms = AGES[asked.choice("age", AGES, "any")]
    page = await asked.admin.pending_page(
        group=asked.text("group", "") or None, older_than_ms=older_than_ms, count=PAGE_SIZE, after=after
    )
    figures = [] if after else [_figures(stats) for stats in await asked.admin.transaction_stats()]
    rows = [_row(each, asked.now_ms) for each in page.transactions]
    hidden = dict.fromkeys(text for each in (*rows, *figures) for text in each["not_reported"])
    return {
        "transactions": rows, "next": page.next, "first": after is None, "brokers": figures, "ages": list(AGES),
        "not_reported": list(hidden),
    }  # fmt: skip


async def one(asked: Asked) -> Facts:
    """Return everything about one transaction, with the beginning of its body."""
    found = await asked.admin.transaction(asked.text("id"))
    facts = {
        "heading": found.msg_id,
        "transaction": _row(found, asked.now_ms),
        "preview": None,
        "body_bytes": 0,
        "expired_id": None,
    }
    try:
        body = (await asked.admin.message_by_offset_id(found.offset_msg_id)).body
        facts["preview"], facts["body_bytes"] = body[:PREVIEW_BYTES].decode("utf-8", "replace"), len(body)
        if found.state == "EXPIRED":
            facts["expired_id"] = (await asked.admin.message_by_id(EXPIRED_TOPIC, found.msg_id)).offset_msg_id
    except HalfmoonError:  # the log no longer has it; what is known of the transaction is shown all the same
        pass
    return facts


async def expired(asked: Asked) -> Facts:
    """Return expired transactions, the newest first."""
    after = asked.text("after", "", length_max=CURSOR_LENGTH_MAX) or None
    page = await asked.admin.expired_page(count=PAGE_SIZE, after=after)
    return {"transactions": facts_of(page.transactions), "next": page.next, "first": after is None}


async def check(asked: Asked) -> Done:
    """Have a producer asked now."""
    found = await asked.admin.check_transaction(asked.text("id"))
    said = f"A producer of group {found.group} is asked. Its answer is shown here once it came: open the page again in a moment."
    return Done(said, at("/transaction", id=found.offset_msg_id))


async def decide(asked: Asked) -> Done:
    """Commit or roll back by hand; what was decided meanwhile stays as it is, which is said."""
    name, commit = asked.text("id"), asked.choice("decision", ("commit", "rollback")) == "commit"
    if asked.values.get("sure") != "yes":
        raise UsageError("nothing was decided: tick the box to say that you know what the decision does")
    before = await asked.admin.transaction(name)
    done = await asked.admin.decide_transaction(name, commit=commit, operator=asked.user)
    if before.state != "PREPARED":
        said = f"Nothing was changed: the transaction was decided before ({before.state})."
    elif commit:
        said = f"The transaction is committed: consumers of {done.topic} get its message."
    else:
        said = "The transaction is rolled back: its message is never delivered."
    return Done(said, at("/transaction", id=before.offset_msg_id))


async def resume(asked: Asked) -> Done:
    """Make an expired transaction pending again."""
    await asked.admin.resume_half(asked.text("id"))
    return Done("The transaction is pending again, and its producers are asked, from the first check on.", "/transactions/expired")


PAGES = (
    Page("/transactions", "Transactions", "transactions.html", pending, menu=True),
    Page("/transactions/expired", "Expired transactions", "transactions_expired.html", expired, under="/transactions"),
    Page("/transaction", "Transaction", "transaction.html", one, under="/transactions"),
    Change("/transaction/check", check, ("id",)),
    Change("/transaction/decide", decide, ("id", "decision")),
    Change("/transaction/resume", resume, ("id",)),
)
