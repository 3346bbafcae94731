"""What must hold of transactions that stay open for long, and of decisions that come after giving up. Facts to problems.

They stand beside `simulation.transactions.checkers`: that acknowledged decisions hold and are never reversed is asked there.
"""

from __future__ import annotations

from collections import Counter

from simulation.transactions.checkers import SETTLE_MS, SLACK_MS, Logs, said, troubles_of
from simulation.transactions.ledger import TxLedger
from simulation.transactions.log import COMMITTED, ROLLED_BACK
from simulation.verdict import by_checker


def check_late(ledger: TxLedger, logs: Logs) -> list[str]:
    """Return everything that is wrong: each checker's problems with its name before them."""
    problems = {
        "open": open_costs_no_check(ledger, logs),
        "honoured": decided_after_all(ledger, logs),
        "delivered": delivered_once(logs),
    }
    return by_checker(problems)


def open_costs_no_check(ledger: TxLedger, logs: Logs) -> list[str]:
    """While all is well, each check of what is open is known to be answered so; and so nothing open is given up.

    `given_up_for_a_reason` asks that what such an answer pardons is not counted.
    """
    problems = []
    for broker, log in logs.items():
        losses, troubles = ledger.messages.faults_of(broker, "power", "sync"), troubles_of(ledger, broker)
        if broker in ledger.filled:
            continue
        for one in log.given_up:
            for second, answer in one.history:
                spans = ledger.seconds(broker, second)
                begin_ms, end_ms = spans[0][0], spans[-1][1] + SLACK_MS
                unwell = any(begin <= end_ms and end >= begin_ms - SETTLE_MS for begin, end in troubles)
                lost = any(loss.at_ms >= begin_ms for loss in losses)
                told = ledger.stored_between(broker, one.physical_offset, one.store_ms)[0] > end_ms
                if answer != "OPEN" and told and not unwell and not lost and ledger.is_open(one.key, begin_ms, end_ms):
                    problems.append(f"{broker}: {one.key} was open at {begin_ms}, and a check then has the answer {answer}: {one}")
    return problems


def decided_after_all(ledger: TxLedger, logs: Logs) -> list[str]:
    """A producer's decision about what was given up is agreed to, unless it was decided the other way."""
    by_hand = {(one.broker, one.index, one.committed) for one in ledger.by_hand}
    problems = []
    for broker, log in logs.items():
        if broker in ledger.filled or broker in ledger.crowded or ledger.messages.faults_of(broker, "sync"):
            continue  # it may take nothing
        outcomes, copies = log.outcomes(), {one.half_offset: one for one in log.given_up}
        for one in ledger.ended:
            half = log.halves.get(one.index)
            copy = None if half is None else copies.get(half.physical_offset)
            if one.broker != broker or one.code == 0 or copy is None or (broker, one.index, one.committed) in by_hand:
                continue
            outcome, opposite = outcomes[one.index], ROLLED_BACK if one.committed else COMMITTED
            if ledger.stored_between(broker, copy.physical_offset, copy.store_ms)[1] < one.asked_ms and outcome != opposite:
                problems.append(f"{broker}: {said(one)} of what was given up was refused: {one}, its state is {outcome}")
    return problems


def delivered_once(logs: Logs) -> list[str]:
    """However often a transaction was given up, resumed and committed late, it is visible once."""
    problems = []
    for broker, log in logs.items():
        if log.first:
            continue
        halves = Counter(half.key for half in log.halves.values() if not half.resumed)
        for key, count in Counter(one.key for one in log.visible).items():
            if count > halves[key]:
                problems.append(f"{broker}: {key} was half {halves[key]} times and is visible {count} times")
    return problems
