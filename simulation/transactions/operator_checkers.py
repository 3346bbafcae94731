"""Checkers of what operators did and were shown, and of log files that went.

They stand beside `simulation.transactions.checkers`, whose checkers judge decisions by hand as any other decisions, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from simulation.checkers import may_be_gone
from simulation.transactions.checkers import Logs, may_be_lost
from simulation.transactions.ledger import DecisionByHand, TxLedger
from simulation.transactions.log import COMMITTED, PREPARED, ROLLED_BACK, TxLog

_STATES = {"PREPARED": PREPARED, "COMMITTED": COMMITTED, "ROLLED_BACK": ROLLED_BACK}


def check_operators(ledger: TxLedger, logs: Logs) -> dict[str, list[str]]:
    """Return what is wrong, by checker."""
    return {
        "shown": shown_as_it_is(ledger, logs),
        "by hand": decided_by_whom(ledger, logs),
        "resumed": resumed_once(ledger, logs),
        "copied": copied_once(logs),
        "gone": nothing_undecided_goes(ledger),
    }


def shown_as_it_is(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that no decided transaction is shown as pending, and that one shown as decided is so in the end.

    What expired is shown as rolled back, and may be committed after that.
    """
    first = {(decision.broker, decision.index): decision for decision in reversed(ledger.agreed())}
    states = {broker: log.states() for broker, log in logs.items()}
    problems = []
    for shown in ledger.shown:
        decision, half = first.get((shown.broker, shown.index)), logs[shown.broker].halves.get(shown.index)
        if half is None or may_be_gone(ledger.messages, shown.broker, shown.at_ms):
            continue
        state = states[shown.broker][shown.index]
        if half.key != shown.key:
            problems.append(f"{shown} is about {half.key}")
        elif shown.state != "PREPARED" and state != _STATES[shown.state]:
            problems.append(f"{shown}, and in the end its state is {state}")
        elif shown.state == "PREPARED" and decision is not None and decision.at_ms < shown.asked_ms:
            if may_be_lost(ledger, logs, decision, by_ms=shown.at_ms):
                continue  # with async flush it was in memory only when the power went
            problems.append(f"{shown}, but {decision} was agreed to before")
    return problems


def decided_by_whom(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that an op record names an operator who asked for just that, and one that only an operator can have caused does."""
    asked: defaultdict[tuple[str, int], dict[str, bool]] = defaultdict(dict)
    for decision in ledger.by_hand:
        asked[decision.broker, decision.index][decision.operator] = decision.committed
    problems = []
    for broker, log in logs.items():
        states = log.states()
        for index, who in log.deciders.items():
            wanted = asked[broker, index].get(who)
            if wanted is None or states.get(index, 0) not in (0, COMMITTED if wanted else ROLLED_BACK):
                problems.append(f"{broker}: half message {index} has state {states.get(index)} by {who!r}, who asked for {wanted}")
    return problems + [
        f"{decision} was agreed to, and nobody's name is in its op record"
        for decision in ledger.by_hand
        if decision.code == 0 and decision.key in ledger.never and _has_no_name(ledger, logs[decision.broker], decision)
    ]


def _has_no_name(ledger: TxLedger, log: TxLog, decision: DecisionByHand) -> bool:
    """Whether the op record of a decision should name an operator, and does not: nothing can have taken it."""
    half, broker = log.halves.get(decision.index), decision.broker
    if half is None or half.physical_offset in log.copied() or decision.index in log.deciders:
        return False
    return broker not in ledger.filled and not ledger.messages.faults_of(broker, "kill", "power", "sync")


def resumed_once(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that each copy is resumed once at most, and that its message is half again behind it."""
    agreed = [resume for resume in ledger.resumes if resume.code == 0]
    problems = [
        f"{broker}: the copy at {place} was resumed {count} times"
        for (broker, place), count in Counter((resume.broker, resume.place) for resume in agreed).items()
        if count > 1 and not ledger.messages.faults_of(broker, "power")
    ]
    whole = {broker: log for broker, log in logs.items() if not log.first}  # of the others files are gone
    problems += [
        f"{resume} was agreed to, and nothing is half again"
        for resume in agreed
        if resume.broker in whole
        and not any(half.key == resume.key and half.physical_offset > resume.place for half in whole[resume.broker].resumed())
        and not may_be_gone(ledger.messages, resume.broker, resume.at_ms)
    ]
    return problems + [problem for broker, log in whole.items() for problem in _without_a_copy(broker, log)]


def _without_a_copy(broker: str, log: TxLog) -> list[str]:
    """Check that each half message that was resumed has a copy of its own before it."""
    copies, halves, problems = defaultdict(list), Counter[str](), []
    for copy in log.expired:
        copies[copy.key].append(copy.physical_offset)
    for half in log.resumed():
        halves[half.key] += 1
        if sum(place < half.physical_offset for place in copies[half.key]) < halves[half.key]:
            problems.append(f"{broker}: {half.key} at {half.physical_offset} is resumed without a copy of its own")
    return problems


def copied_once(logs: Logs) -> list[str]:
    """Check that a half message which expires has one copy, of its body, and is settled as never visible."""
    problems = []
    for broker, log in logs.items():
        places, states = log.by_place(), log.states()
        counts = Counter(copy.half_offset for copy in log.expired)
        problems += [f"{broker}: the half message at {place} has {count} copies" for place, count in counts.items() if count > 1]
        for copy in log.expired:
            half = places.get(copy.half_offset)
            if half is None and copy.half_offset < log.first:
                continue
            if half is None or half.key != copy.key:
                problems.append(f"{broker}: the copy of {copy.key} names {half} as its half message")
            elif states[half.index] == PREPARED:
                problems.append(f"{broker}: half message {half.index} ({copy.key}) has a copy and is pending")
    return problems


def nothing_undecided_goes(ledger: TxLedger) -> list[str]:
    """Check that every half message of a removed log file was decided on the device; by nobody only with a copy."""
    by_hand = {(decision.broker, decision.index) for decision in ledger.by_hand}
    return [
        f"{half} when its file was removed"
        for half in ledger.removed
        if half.state == PREPARED or (half.key in ledger.never and not half.copied and (half.broker, half.index) not in by_hand)
    ]
