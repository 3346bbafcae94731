"""What must hold of what operators did and were told in a history, and of log files that went. Functions from facts to problems.

They stand beside `simulation.transactions.checkers`, whose checkers judge decisions by hand as any other decisions, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from simulation.messages.checkers import may_be_gone
from simulation.transactions.checkers import Logs
from simulation.transactions.ledger import TxLedger
from simulation.transactions.log import COMMITTED, PREPARED, ROLLED_BACK
from simulation.verdict import by_checker

_STATES = {"PREPARED": PREPARED, "COMMITTED": COMMITTED, "ROLLED_BACK": ROLLED_BACK}


def check_operators(ledger: TxLedger, logs: Logs) -> list[str]:
    """Return everything that is wrong: each checker's problems with its name before them."""
    problems = {
        "told": told_as_it_is(ledger, logs),
        "by hand": decided_by_whom(ledger, logs),
        "resumed": resumed_once(ledger, logs),
        "copied": copied_once(logs),
        "gone": nothing_undecided_goes(ledger),
    }
    return by_checker(problems)


def told_as_it_is(ledger: TxLedger, logs: Logs) -> list[str]:
    """Pending is only what nobody's decision was agreed to before; what is told as decided is so in the end.

    What was given up is told as rolled back, and may be committed after that.
    """
    agreed = {(one.broker, one.index): one for one in reversed(ledger.ended) if one.code == 0}
    states = {broker: log.states() for broker, log in logs.items()}
    problems = []
    for one in ledger.told:
        ended, half = agreed.get((one.broker, one.index)), logs[one.broker].halves.get(one.index)
        if half is None or may_be_gone(ledger.messages, one.broker, one.at_ms):
            continue
        state = states[one.broker][one.index]
        if half.key != one.key:
            problems.append(f"{one} is about {half.key}")
        elif one.state != "PREPARED" and state != _STATES[one.state]:
            problems.append(f"{one}, and in the end its state is {state}")
        elif one.state == "PREPARED" and ended is not None and ended.at_ms < one.asked_ms:
            problems.append(f"{one}, but {ended} was agreed to before")
    return problems


def decided_by_whom(ledger: TxLedger, logs: Logs) -> list[str]:
    """An op record names an operator who asked for just that; what only an operator can have decided names one."""
    asked: defaultdict[tuple[str, int], dict[str, bool]] = defaultdict(dict)
    for one in ledger.by_hand:
        asked[one.broker, one.index][one.operator] = one.committed
    problems = []
    for broker, log in logs.items():
        states = log.states()
        for index, who in log.deciders.items():
            wanted = asked[broker, index].get(who)
            if wanted is None or states.get(index, 0) not in (0, COMMITTED if wanted else ROLLED_BACK):
                problems.append(f"{broker}: half message {index} has state {states.get(index)} by {who!r}, who asked for {wanted}")
    copied = {(broker, one.half_offset) for broker, log in logs.items() for one in log.given_up}
    for one in ledger.by_hand:
        log = logs[one.broker]
        half = log.halves.get(one.index)
        if half is None or one.code != 0 or one.key not in ledger.never or (one.broker, half.physical_offset) in copied:
            continue
        unsure = ledger.messages.faults_of(one.broker, "kill", "power", "sync") or one.broker in ledger.filled
        if not unsure and one.index not in log.deciders:
            problems.append(f"{one} was agreed to, and nobody's name is in its op record")
    return problems


def resumed_once(ledger: TxLedger, logs: Logs) -> list[str]:
    """Each copy is resumed once at most; what was agreed to is half again, behind the copy."""
    problems = []
    agreed = Counter((one.broker, one.place) for one in ledger.resumes if one.code == 0)
    for (broker, place), count in agreed.items():
        if count > 1 and not ledger.messages.faults_of(broker, "power"):
            problems.append(f"{broker}: the copy at {place} was resumed {count} times")
    for one in ledger.resumes:
        log = logs[one.broker]
        found = [half for half in log.halves.values() if half.resumed and half.key == one.key and half.physical_offset > one.place]
        if one.code == 0 and not found and not log.first and not may_be_gone(ledger.messages, one.broker, one.at_ms):
            problems.append(f"{one} was agreed to, and nothing is half again")
    for broker, log in logs.items():
        copies, halves = defaultdict(list), Counter[str]()
        for copy in log.given_up:
            copies[copy.key].append(copy.physical_offset)
        for half in log.halves.values():
            if half.resumed and not log.first:
                halves[half.key] += 1
                if sum(place < half.physical_offset for place in copies[half.key]) < halves[half.key]:
                    problems.append(f"{broker}: {half.key} at {half.physical_offset} is resumed without a copy of its own")
    return problems


def copied_once(logs: Logs) -> list[str]:
    """A half message that is given up has one copy, of its body, and is settled as never visible."""
    problems = []
    for broker, log in logs.items():
        places, states = log.by_place(), log.states()
        counts = Counter(one.half_offset for one in log.given_up)
        problems += [f"{broker}: the half message at {place} has {count} copies" for place, count in counts.items() if count > 1]
        for one in log.given_up:
            half = places.get(one.half_offset)
            if half is None and one.half_offset < log.first:
                continue
            if half is None or half.key != one.key:
                problems.append(f"{broker}: the copy of {one.key} names {half} as its half message")
            elif states[half.index] == PREPARED:
                problems.append(f"{broker}: half message {half.index} ({one.key}) has a copy and is pending")
    return problems


def nothing_undecided_goes(ledger: TxLedger) -> list[str]:
    """When a log file is removed, every half message in it is decided on the device; by nobody only with a copy."""
    by_hand = {(one.broker, one.index) for one in ledger.by_hand}
    return [
        f"{one} when its file was removed"
        for one in ledger.gone
        if one.state == PREPARED or (one.key in ledger.never and not one.copied and (one.broker, one.index) not in by_hand)
    ]
