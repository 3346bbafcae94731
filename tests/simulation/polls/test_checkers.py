"""The checkers of pull consumers find in a few facts what each is for."""

from __future__ import annotations

from halfmoon.model import MessageQueue
from simulation.polls.checkers import PollLedger, Tenure, check_polls

QUEUE = MessageQueue("orders", "broker-a", 0)


def ledger(*given: int, stored: int | None = 0) -> PollLedger:
    facts = PollLedger()
    for offset in range(3):
        facts.acknowledged(QUEUE, offset, b"")
    facts.tenures.append(Tenure("m1", QUEUE, stored, given=list(given)))
    for offset in given:
        facts.confirm(QUEUE, offset)
    return facts


def checkers(facts: PollLedger) -> list[str]:
    return [problem.partition(":")[0] for problem in check_polls(facts)]


def test_every_message_once_and_in_order_is_well() -> None:
    assert checkers(ledger(0, 1, 2)) == []


def test_messages_that_are_left_out_repeated_or_already_committed_are_found() -> None:
    assert checkers(ledger(0, 2)) == ["lost", "skipped"]
    assert checkers(ledger(0, 1, 1, 2)) == ["again"]
    assert checkers(ledger(0, 1, 2, stored=1)) == ["begun"]


def test_progress_ahead_of_what_was_confirmed_and_progress_that_a_close_forgot_are_found() -> None:
    facts = ledger(0)
    facts.seen(QUEUE, 2, 100)
    facts.confirm(QUEUE, 1)
    facts.confirm(QUEUE, 2)
    facts.closed.append(("m1", QUEUE, 3, 2))
    assert checkers(facts) == ["ahead", "kept"]


def test_what_lies_before_a_seek_need_not_be_read() -> None:
    facts = ledger()
    facts.passed[QUEUE] = 3
    assert checkers(facts) == []
