"""Pages of transactions: pending ones with the reasons, one in full, expired ones; batches. Operators check, decide and resume."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from halfmoon.console.page import PAGE_SIZE, Asked, Change, Done, Facts, Page, Question
from halfmoon.console.pages.bodies import body_of
from halfmoon.console.render import at
from halfmoon.errors import HalfmoonError
from halfmoon.shown.texts import facts_of, span_text

AGES = {"any": 0, "1m": 60_000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000}
"""How old what is shown is at least, in ms."""
EXPIRED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUPS_MAX, SPANS_MIN = 20, 6
"""Groups of a broker that are shown, those with the most pending; and spans of time to decision: more if they have any."""
DECISIONS = {
    "commit": "I checked: the transaction committed. Deliver its message to the consumers of {topic}.",
    "rollback": "I checked: the transaction failed. Never deliver its message to {topic}.",
}
BUTTONS = {"commit": "Commit", "rollback": "Roll back"}
ATTEMPTS_MAX = 100
"""Most undecided attempts that are shown of one id."""
ANSWERS = {
    "": "its producer has not decided, and the first check is not due yet",
    "UNKNOWN": "a producer answered that it does not know the outcome (UNKNOWN)",
    "OPEN": "a producer answered that the transaction is still open",
    "NOT_MINE": "the members of its group that were asked have no check of it, or another database (NOT_MINE)",
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
    return ANSWERS.get(last, f"a producer answered {last}; if it stays pending, the broker's log says why")


def _row(transaction: Any, now_ms: int) -> Facts:
    why = why_pending(transaction, now_ms) if transaction.state == "PREPARED" else ""
    age_ms = now_ms - transaction.since_ms
    return {**facts_of(transaction), "now_ms": now_ms, "age_ms": age_ms, "last_answer": transaction.last_answer, "why": why}


def _figures(stats: Any) -> Facts:
    groups, counts = sorted(stats.groups, key=lambda group: -group.pending), stats.decided_after
    shown = max([SPANS_MIN, *(number + 1 for number, count in enumerate(counts) if count)])
    return {
        **facts_of(stats), "groups": facts_of(groups[:GROUPS_MAX]), "groups_left_out": len(groups[GROUPS_MAX:]),
        "time_to_decision": [(span_text(2000 << n - 1 if n else 0), count) for n, count in enumerate(counts[:shown])],
        "decided": sum(counts),
    }  # fmt: skip


async def pending(asked: Asked) -> Facts:
    """Return pending transactions, the oldest first; on the first page also the figures of all brokers."""
    group, older_than_ms = asked.text("group", "") or None, AGES[asked.choice("age", AGES, "any")]
    failing: list[str] = []
    page = await asked.admin.pending_page(
        group=group, older_than_ms=older_than_ms, count=PAGE_SIZE, after=asked.after or None, failing=failing
    )
    figures = [] if asked.after else [_figures(stats) for stats in await asked.admin.transaction_stats(failing=failing)]
    rows = asked.sorted([_row(each, asked.now_ms) for each in page.transactions])
    hidden = list(dict.fromkeys([*failing, *(text for each in (*rows, *figures) for text in each["not_reported"])]))
    return {"transactions": rows, "next": page.next, "ages": list(AGES), "brokers": figures, "not_reported": hidden}


async def state(asked: Asked) -> Facts:
    """Return the facts of one transaction that change while it is shown."""
    found = await asked.admin.transaction(asked.text("id"))
    return {"heading": found.msg_id, "transaction": _row(found, asked.now_ms)}


async def one(asked: Asked) -> Facts:
    """Return everything about one transaction; without its body, where the log no longer has it."""
    facts = await state(asked) | {"body": None, "properties": {}, "expired_id": None}
    found = facts["transaction"]
    with suppress(HalfmoonError):
        message = await asked.admin.message_by_offset_id(found["offset_msg_id"])
        facts |= {"body": await body_of(message), "properties": message.properties}
        if found["state"] == "EXPIRED":
            facts["expired_id"] = (await asked.admin.message_by_id(EXPIRED_TOPIC, found["msg_id"])).offset_msg_id
    return facts


async def expired(asked: Asked) -> Facts:
    """Return expired transactions, the newest first."""
    hidden: list[str] = []
    page = await asked.admin.expired_page(count=PAGE_SIZE, after=asked.after or None, failing=hidden)
    return {"transactions": asked.sorted(facts_of(page.transactions)), "next": page.next, "not_reported": hidden}


async def batches(asked: Asked) -> Facts:
    """Return transactional ids, one if the query names it, a row for each broker that takes part; then with its attempts."""
    name = asked.text("id", "") or None
    hidden: list[str] = []
    brokers = await asked.admin.batches(name, failing=hidden)
    rows = [
        {
            **facts_of(batch), "broker": status.broker, "attempts": facts_of(batch.attempts[:ATTEMPTS_MAX]) if name else [],
            "oldest_ms": max((attempt.age_ms for attempt in batch.attempts), default=None),
            "coordinator": batch.coordinator or status.broker,
            "waits_for": ", ".join(batch.waiting), "decided": _number(batch.decided), "applied": _number(batch.applied),
        }
        for status in brokers
        for batch in status.ids
    ]  # fmt: skip
    shown, more = asked.table(rows, lambda row: f"{row['broker']} {row['transactional_id']}", "transactional_id")
    unsupported = [status.broker for status in brokers if not status.supported]
    return {"batches": shown, "next": more, "unsupported": unsupported, "not_reported": hidden}


def _number(batch: int) -> int | None:
    return None if batch < 0 else batch


async def check(asked: Asked) -> Done:
    """Check a transaction with a producer now."""
    found = await asked.admin.check_transaction(asked.text("id"))
    said = f"A producer of group {found.group} got a check; its answer will appear under Checks."
    return Done(said, at("/transaction", id=found.offset_msg_id))


async def ask_decide(asked: Asked) -> Facts:
    """Return what a decision by hand does."""
    decision = asked.choice("decision", DECISIONS)
    found = await asked.admin.transaction(asked.text("id"))
    effects = [f"Transaction {found.msg_id} of group {found.group} is decided by hand: its producer is not asked.",
               DECISIONS[decision].format(topic=found.topic), "The decision cannot be undone."]  # fmt: skip
    fields = {"id": found.offset_msg_id, "decision": decision}
    return {
        "heading": found.msg_id,
        "question": Question(effects, BUTTONS[decision], fields, at("/transaction", id=found.offset_msg_id)),
    }


async def decide(asked: Asked) -> Done:
    """Commit or roll back by hand; a decision made meanwhile stays, and is reported."""
    name, commit = asked.text("id"), asked.choice("decision", DECISIONS) == "commit"
    before = await asked.admin.transaction(name)
    await asked.admin.decide_transaction(name, commit=commit, operator=asked.user)
    said = f"committed: consumers of {before.topic} get its message" if commit else "rolled back: its message is never delivered"
    verb = "is" if before.state == "PREPARED" else "was already"
    return Done(f"The transaction {verb} {said}.", at("/transaction", id=before.offset_msg_id))


async def resume(asked: Asked) -> Done:
    """Make an expired transaction pending again. Only brokers of the cluster are asked, whatever address the form has."""
    await asked.admin.resume_half((await asked.admin.find_message(asked.text("id"))).offset_msg_id)
    return Done("The transaction is pending again, and its producers are asked, from the first check on.", "/transactions/expired")


PAGES = (
    Page("/transactions", "Transactions", "transactions.html", pending, menu="Trouble"),
    Page("/transactions/live", "Transactions", "transactions_live.html", pending, under="/transactions", fragment=True),
    Page("/transactions/expired", "Expired transactions", "transactions_expired.html", expired, under="/transactions"),
    Page("/transaction", "Transaction", "transaction.html", one, under="/transactions"),
    Page("/transaction/live", "Transaction", "transaction_live.html", state, fragment=True),
    Change("/transaction/check", check, ("id",)),
    Page("/transaction/decide", "Decide a transaction", "confirm.html", ask_decide, under="/transactions", operators=True),
    Change("/transaction/decide", decide, ("id", "decision"), irreversible=True),
    Change("/transaction/resume", resume, ("id",)),
)
BATCHES = (Page("/batches", "Batches", "batches.html", batches, menu="Trouble"),)
