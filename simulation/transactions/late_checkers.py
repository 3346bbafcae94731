"""What must hold of transactions that stay open for long, and of decisions that come after expiry. Facts to problems.

They stand beside `simulation.transactions.checkers`: that acknowledged decisions hold and are never reversed is asked there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simulation.transactions.checkers import SETTLE_MS, SLACK_MS, Logs, named, troubles_of
from simulation.transactions.ledger import TxLedger
from simulation.transactions.log import COMMITTED, ROLLED_BACK, ExpiredRecord


def check_late(ledger: TxLedger, logs: Logs) -> dict[str, list[str]]:
    """Return what is wrong, by checker."""
    return {
        "open": open_costs_no_check(ledger, logs),
        "honoured": decided_after_all(ledger, logs),
        "delivered": delivered_once(logs),
    }


def open_costs_no_check(ledger: TxLedger, logs: Logs) -> list[str]:
    """While all is well, each check of what is open is known to be answered so; and so nothing open expires.

    `expired_for_a_reason` asks that what such an answer pardons is not counted.
    """
    return [
        f"{broker}: {record.key} was open at {begin_ms}, and a check then has the answer {answer}: {record}"
        for broker, log in logs.items()
        if broker not in ledger.filled
        for record in log.expired
        for begin_ms, answer in _unheard(ledger, broker, record)
    ]


def _unheard(ledger: TxLedger, broker: str, record: ExpiredRecord) -> Iterator[tuple[int, str]]:
    """Yield the checks of which a broker should know that they were answered with *open*, and what it has as their answer."""
    losses, troubles = ledger.messages.faults_of(broker, "power", "sync"), troubles_of(ledger, broker)
    for second, answer in record.history:
        spans = ledger.seconds(broker, second)
        begin_ms, end_ms = spans[0][0], spans[-1][1] + SLACK_MS
        unwell = any(begin <= end_ms and end >= begin_ms - SETTLE_MS for begin, end in troubles)
        lost = any(loss.at_ms >= begin_ms for loss in losses)
        heard = ledger.stored_between(broker, record.physical_offset, record.store_ms)[0] > end_ms
        if answer != "OPEN" and heard and not unwell and not lost and ledger.is_open(record.key, begin_ms, end_ms):
            yield begin_ms, answer


def decided_after_all(ledger: TxLedger, logs: Logs) -> list[str]:
    """A producer's decision about what expired is agreed to, unless it was decided the other way."""
    by_hand = {(decision.broker, decision.index, decision.committed) for decision in ledger.by_hand}
    problems = []
    for broker, log in logs.items():
        if broker in ledger.filled or broker in ledger.crowded or ledger.messages.faults_of(broker, "sync"):
            continue  # it may take nothing
        outcomes, copies = log.outcomes(), {record.half_offset: record for record in log.expired}
        refused = [decision for decision in ledger.decisions if decision.broker == broker and decision.code != 0]
        for decision in refused:
            half = log.halves.get(decision.index)
            copy = None if half is None else copies.get(half.physical_offset)
            if copy is None or (broker, decision.index, decision.committed) in by_hand:
                continue
            outcome, opposite = outcomes[decision.index], ROLLED_BACK if decision.committed else COMMITTED
            copied_ms = ledger.stored_between(broker, copy.physical_offset, copy.store_ms)[1]
            if copied_ms < decision.asked_ms and outcome != opposite:
                what = f"{named(decision)} of what expired was refused"
                problems.append(f"{broker}: {what}: {decision}, its state is {outcome}")
    return problems


def delivered_once(logs: Logs) -> list[str]:
    """However often a transaction expired, was resumed and committed late, it is visible once."""
    problems = []
    for broker, log in logs.items():
        if log.first:
            continue
        halves = Counter(half.key for half in log.halves.values() if not half.resumed)
        for key, count in Counter(record.key for record in log.visible).items():
            if count > halves[key]:
                problems.append(f"{broker}: {key} was half {halves[key]} times and is visible {count} times")
    return problems
