"""Brokers with a fault planted into what operators ask for, into expiry, or into what holds log files back."""

from __future__ import annotations

from typing import Any

from halfmoon.broker.request import Reply
from halfmoon.store.layout import OP_PROPERTIES
from halfmoon.store.transactions.state_table import State
from halfmoon.wire.headers.transaction import DecideTransaction
from tests.simulation.faulty import faulty_broker
from tests.simulation.transactions.planted import make_visible


@faulty_broker
def obedient(broker: Any) -> None:
    """A broker that commits by hand also what was rolled back."""
    pending = broker.transactions.pending

    def decide(request: Any) -> Any:
        header = request.header(DecideTransaction)
        half = pending._find(header)
        if half.state is not State.ROLLED_BACK or not header.commit:
            return pending.decide(request)
        make_visible(broker, half)
        return Reply()

    broker._handlers[31004] = decide


@faulty_broker
def nameless(broker: Any) -> None:
    """A broker that writes down nowhere who decided by hand."""
    decisions = broker.transactions.decisions
    decide = decisions.decide
    decisions.decide = lambda decided, now, by=b"": decide(decided, now)  # type: ignore[method-assign]


@faulty_broker
def misnaming(broker: Any) -> None:
    """A broker that writes the operator's name into the op record of somebody else's decision."""
    decisions = broker.transactions.decisions
    decide, last = decisions._decide, [OP_PROPERTIES]

    def named(halves: Any, completions: Any, now: int, tagged: bytes = OP_PROPERTIES) -> list[int]:
        last[0] = last[0] if tagged == OP_PROPERTIES else tagged
        return decide(halves, completions, now, last[0])

    decisions._decide = named  # type: ignore[method-assign]


@faulty_broker
def stale(broker: Any) -> None:
    """A broker that tells of decided transactions as if they were pending."""
    pending = broker.transactions.pending
    transaction = pending._transaction

    def told(half: Any, now: int) -> Any:
        found = transaction(half, now)
        found.state = "PREPARED"
        return found

    pending._transaction = told  # type: ignore[method-assign]


@faulty_broker
def unheeding(broker: Any) -> None:
    """A broker that answers a decision by hand, with sync flush, before it is durable."""
    broker.pending_replies.reply = lambda request, reply, durable=False: broker.pending_replies.reply_now(request, reply)  # type: ignore[method-assign]


@faulty_broker
def generous(broker: Any) -> None:
    """A broker that resumes a copy as often as it is asked."""
    broker.transactions.expiry._check_resumable = lambda *given: None  # type: ignore[method-assign]


@faulty_broker
def promising(broker: Any) -> None:
    """A broker that agrees to a resume and does nothing."""
    broker._handlers[323] = lambda request: Reply()


@faulty_broker
def copying(broker: Any) -> None:
    """A broker that remembers over no start what it has copied."""
    broker.transactions.expiry._copied_before = set  # type: ignore[method-assign]


@faulty_broker
def careless(broker: Any) -> None:
    """A broker that lets log files go with what is pending in them."""
    broker.store.maintenance.pins.remove(broker.transactions.index.pin)


@faulty_broker
def rash(broker: Any) -> None:
    """A broker that lets log files go before the decisions about what is in them are durable."""
    pin, file_bytes = broker.transactions.index.pin, broker.store.settings.commit_log_file_bytes
    pin.allows = lambda expired, *_: min(expired, pin.needed_from() // file_bytes * file_bytes)


@faulty_broker
def clockwise(broker: Any) -> None:
    """A broker that counts ages by the clock alone, as the original does."""
    broker.transactions.uptime.age_ms = lambda stored_ms, now: now - stored_ms  # type: ignore[method-assign]
