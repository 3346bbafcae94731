"""Transactions of one broker: when they want to be called, and what a restart keeps."""

from tests.broker.half import half_properties
from tests.broker.talk import send_header


def prepare(talk, key):
    assert talk.ask(send_header("T", properties=half_properties(key), sys_flag=4), b"body").code == 0


def test_without_anything_pending_only_rounds_are_due(talk):
    transactions = talk.broker.transactions
    assert transactions.due(talk.instant) <= transactions.checks.next_round_at
    talk.wait(200_000)
    assert transactions.checks.counters.rounds >= 3
    assert transactions.checks.counters.sent == 0


def test_gaps_in_the_uptime_are_forgotten_once_nothing_is_pending(talk):
    transactions = talk.broker.transactions
    prepare(talk, "u1")
    talk.now += 3_600_000  # the machine stood still
    transactions.tick(talk.instant)
    assert transactions.uptime.age_ms(talk.now - 3_600_000, talk.now) < 60_000
    transactions.decisions.expire(0, talk.now)
    talk.wait(200_000)
    assert transactions.uptime.age_ms(talk.now - 7_200_000, talk.now) == 7_200_000


def test_pending_half_messages_are_pending_after_a_restart(talk):
    prepare(talk, "u1")
    talk.restart()
    assert talk.broker.transactions.index.pending_count == 1
