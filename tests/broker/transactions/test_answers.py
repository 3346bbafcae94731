"""Answers to checks: whose counts, for which check, and which checks they pardon."""

from __future__ import annotations

import pytest

from halfmoon.broker.transactions.answers import Answer
from tests.broker.half import CHECKS, GROUP, UNKNOWN, checks, end, prepare, produce

EVERYBODY = range(1, 4)


@pytest.fixture
def talk(make_talk):
    """A broker that asks soon, and a group of three members."""
    talk = make_talk(**CHECKS)
    join(talk)
    return talk


def join(talk):
    for peer in EVERYBODY:
        produce(talk, GROUP, peer=peer)


def asked(talk):
    """Take out the checks; return the members that got one."""
    return [peer for peer in EVERYBODY if peer in talk.received and checks(talk, peer)]


def not_mine(talk, sent, peer):
    end(talk, sent, UNKNOWN, oneway=True, check=True, not_mine="true", peer=peer)
    talk.wait(0)


def transaction(talk):
    index = talk.broker.transactions.index
    return index.checks(index.end - 1)


@pytest.mark.parametrize("wrong", [{"group": "others"}, {"place": 7}, {"index": 3}, {"check": False}, {"peer": 2}, {"peer": 40}])
def test_only_the_member_that_was_asked_can_say_that_a_check_is_not_its_own(talk, wrong):
    sent = prepare(talk, peer=1)
    talk.connect(40)
    talk.wait(5000)
    assert asked(talk) == [1]
    end(talk, sent, UNKNOWN, **{"oneway": True, "check": True, "not_mine": "true", "peer": 1, **wrong})
    talk.wait(0)

    assert asked(talk) == []
    assert (transaction(talk).counted, transaction(talk).history[0].answer) == (1, Answer.NONE)


def test_a_second_answer_asks_nobody_and_pardons_nothing(talk):
    sent = prepare(talk, peer=1)
    talk.wait(5000)
    assert asked(talk) == [1]
    not_mine(talk, sent, 1)
    assert len(asked(talk)) == 1
    not_mine(talk, sent, 1)

    assert asked(talk) == []
    assert (transaction(talk).sent, transaction(talk).counted) == (2, 1)
    assert talk.broker.transactions.decisions.answers.counters.not_mine == 1


def test_a_late_answer_pardons_its_own_check_and_asks_nobody_while_another_member_is_asked(talk):
    sent = prepare(talk, peer=1)
    talk.wait(5000)
    assert asked(talk) == [1]
    talk.wait(5000)
    [other] = asked(talk)
    assert transaction(talk).counted == 2
    not_mine(talk, sent, 1)

    assert asked(talk) == []
    assert transaction(talk).counted == 1
    assert [check.answer for check in transaction(talk).history] == [Answer.NOT_MINE, Answer.NONE]
    not_mine(talk, sent, other)
    assert transaction(talk).counted == 1  # of the third, which is asked now
    assert len(asked(talk)) == 1


def test_what_an_open_answer_pardoned_a_late_answer_does_not_pardon_again(talk):
    sent = prepare(talk, peer=1)
    talk.wait(5000)
    assert asked(talk) == [1]
    talk.wait(5000)
    [other] = asked(talk)
    end(talk, sent, UNKNOWN, oneway=True, check=True, open=True, peer=other)
    talk.wait(5000)
    assert asked(talk) == [other]
    assert transaction(talk).counted == 1
    not_mine(talk, sent, 1)

    assert transaction(talk).counted == 1
    assert asked(talk) == []


def test_an_answer_that_comes_behind_a_restart_pardons_and_the_next_round_asks_the_others(talk):
    sent = prepare(talk, peer=1)
    talk.wait(5000)
    assert asked(talk) == [1]
    talk.restart()
    join(talk)
    not_mine(talk, sent, 1)

    assert (transaction(talk).counted, asked(talk)) == (0, [])
    talk.wait(5000)
    assert len(asked(talk)) == 1
