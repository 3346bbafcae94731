"""The checkers of delayed messages find in a few facts what each is for."""

from __future__ import annotations

from simulation.delays.checkers import DelayLedger, Delivered, Wish, check_delays
from simulation.ledger import Ledger


def ledger() -> DelayLedger:
    facts = DelayLedger(Ledger("sync"), once=True)
    for number in range(2):
        facts.wishes[b"%d" % number] = Wish("s", number, 0, 1, due_ms=1000, attempts=1, acked=True)
        facts.delivered.append(Delivered(b"%d" % number, 0, number, 1000 + number))
    return facts


def checkers(facts: DelayLedger) -> list[str]:
    return sorted({problem.partition(":")[0] for problem in check_delays(facts)})


def test_what_comes_once_in_time_and_order_is_well() -> None:
    assert checkers(ledger()) == []


def test_early_lost_repeated_and_recalled_messages_are_found() -> None:
    facts = ledger()
    facts.delivered[0].store_ms = 999
    assert checkers(facts) == ["early"]
    facts = ledger()
    facts.delivered.pop()
    assert checkers(facts) == ["lost"]
    facts = ledger()
    facts.delivered.append(facts.delivered[1])
    assert checkers(facts) == ["twice"]
    facts = ledger()
    facts.wishes[b"0"].recalled = True
    assert checkers(facts) == ["recalled"]


def test_another_order_is_found() -> None:
    facts = ledger()
    facts.delivered.reverse()
    assert checkers(facts) == ["order"]
