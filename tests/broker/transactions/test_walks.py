"""Walks: who is asked first, who next after an answer NOT_MINE, and that such answers cost nothing."""

from __future__ import annotations

from array import array

import pytest

from halfmoon.broker.consumers.clients import GroupMember
from halfmoon.broker.names import EXPIRED_TOPIC
from halfmoon.broker.transactions.answers import Answer
from halfmoon.broker.transactions.walks import Walks, first_asked, next_asked
from halfmoon.hot import tag_hash
from halfmoon.store.transactions.index import Check
from halfmoon.wire.headers.transaction import CheckTransaction
from halfmoon.wire.peer import Peer
from tests.broker.half import CHECKS, COMMIT, GROUP, TOPIC, UNKNOWN, checks, end, prepare, produce, stored

EVERYBODY = range(1, 14)
"""Thirteen members; the tests let one of them alone know of the topic."""


@pytest.fixture
def talk(make_talk):
    """A broker that asks soon, and a group of thirteen members."""
    talk = make_talk(**CHECKS)
    join(talk)
    return talk


def join(talk, peers=EVERYBODY):
    for peer in peers:
        produce(talk, GROUP, peer=peer)


def named(peer):
    """Return the property by which a half message names its sender, as Halfmoon's clients write it."""
    return f"PCLIENT\x01{tag_hash(f'producer-{peer}'.encode()) & 0xFFFFFF:06x}\x02"


def answer(talk, sent, *, able=None, silent=(), peers=EVERYBODY, key="u1"):
    """Let members answer whatever they are asked until nobody is asked any more; return who was, in order."""
    asked = []
    while found := [peer for peer in peers if peer in talk.received and checks(talk, peer)]:
        for peer in found:
            asked.append(peer)
            if peer == able:
                end(talk, sent, COMMIT, oneway=True, check=True, peer=peer, key=key)
            elif peer not in silent:
                end(talk, sent, UNKNOWN, oneway=True, check=True, not_mine="true", peer=peer, key=key)
        talk.wait(0)
    return asked


def transaction(talk):
    index = talk.broker.transactions.index
    return index.checks(index.end - 1)


# ---------------------------------------------------------------- a broker and thirteen members


@pytest.mark.parametrize("able", [1, 7, 13])
def test_in_one_round_members_are_asked_until_one_can_answer_each_once(talk, able):
    sent = prepare(talk, peer=20)  # of a member that is gone
    talk.wait(5000)
    asked = answer(talk, sent, able=able)

    assert (asked[-1], len(set(asked))) == (able, len(asked))
    assert [message.body for message in stored(talk, TOPIC, 3)] == [b"order"]


def test_when_nobody_can_answer_each_round_asks_everybody_and_nothing_is_counted(talk):
    sent = prepare(talk, peer=20)
    for _ in range(20):
        talk.wait(5000)
        join(talk)
        assert sorted(answer(talk, sent)) == list(EVERYBODY)

    assert stored(talk, EXPIRED_TOPIC) == []
    assert (transaction(talk).sent, transaction(talk).counted) == (20 * 13, 0)
    assert talk.broker.transactions.decisions.answers.counters.not_mine == 20 * 13


@pytest.mark.parametrize("by", ["connection", "name"])
def test_the_member_that_sent_the_half_message_is_asked_first(talk, by):
    for number in range(10):
        key, sender = f"u{number}", number % 13 + 1
        sent = prepare(talk, key, peer=sender) if by == "connection" else prepare(talk, key, peer=30, more=named(sender))
        talk.wait(5000)
        assert answer(talk, sent, able=sender, key=key) == [sender]


def test_a_sender_that_connected_anew_is_known_by_its_name_also_after_a_restart(talk):
    sent = prepare(talk, peer=5, more=named(5))
    talk.lose(5)
    talk.restart()
    join(talk)
    talk.wait(5000)
    assert answer(talk, sent, able=5) == [5]


def test_a_silent_sender_costs_checks_and_keeps_nobody_else_from_being_asked(talk):
    sent = prepare(talk, peer=5)
    talk.wait(5000)
    assert answer(talk, sent, able=9, silent=[5]) == [5]
    assert transaction(talk).counted == 1
    talk.wait(5000)
    assert answer(talk, sent, able=9, silent=[5])[-1] == 9


def test_one_member_that_is_silent_in_the_ring_is_passed_in_the_next_round(talk):
    sent = prepare(talk, peer=20)
    talk.wait(5000)
    first = answer(talk, sent, silent=[4])
    assert first[-1] == 4
    talk.wait(10_000)
    second = answer(talk, sent, silent=[4])
    assert set(second[: 13 - len(first)]) == set(EVERYBODY) - set(first)
    assert transaction(talk).counted == (2 if 4 in second else 1)


def test_unknown_counts_as_ever_and_ends_the_walk(talk):
    sent = prepare(talk, peer=20)
    for _ in range(15):
        talk.wait(5000)
        join(talk)
        [peer] = [peer for peer in EVERYBODY if checks(talk, peer)]
        end(talk, sent, UNKNOWN, oneway=True, check=True, peer=peer)
        talk.wait(0)
        assert not any(checks(talk, peer) for peer in EVERYBODY)
    talk.wait(5000)
    assert len(stored(talk, EXPIRED_TOPIC)) == 1


def test_members_that_leave_and_join_meanwhile_are_left_out_and_asked(talk):
    sent = prepare(talk, peer=20)
    talk.wait(5000)
    for peer in EVERYBODY:
        if not checks(talk, peer):
            talk.lose(peer)
        else:
            last = peer
    end(talk, sent, UNKNOWN, oneway=True, check=True, not_mine="true", peer=last)
    produce(talk, GROUP, peer=21)
    talk.wait(0)
    assert answer(talk, sent, peers=range(1, 22)) == [21]
    talk.wait(5000)
    assert sorted(answer(talk, sent, peers=range(1, 22))) == [last, 21]


def test_a_check_by_hand_asks_on_as_a_round_does(talk):
    sent = prepare(talk, peer=20)
    assert talk.ask(CheckTransaction(offset=0), peer=20).code == 0
    assert answer(talk, sent, able=6)[-1] == 6
    assert [message.body for message in stored(talk, TOPIC, 3)] == [b"order"]


def test_what_is_decided_meanwhile_is_asked_about_no_more(talk):
    sent = prepare(talk, peer=1)
    talk.wait(5000)
    assert checks(talk, 1)
    end(talk, sent, UNKNOWN, oneway=True, check=True, not_mine="true", peer=1)
    end(talk, sent, COMMIT, peer=1)
    talk.wait(5000)
    assert not any(checks(talk, peer) for peer in EVERYBODY)
    assert len(talk.broker.transactions.checks.walks) == 0


def test_next_members_are_asked_at_the_rate_of_their_group_and_neither_other_groups_nor_the_next_round_wait(make_talk):
    talk = make_talk(**CHECKS, transaction_checks_per_second=10)
    join(talk)
    produce(talk, "others", peer=30)
    produce(talk, "others", peer=31)
    mine, other = prepare(talk, peer=20), prepare(talk, "u2", group="others", peer=30)
    talk.wait(5000)
    begun, asked = talk.now, answer(talk, mine)
    assert checks(talk, 30)
    end(talk, other, UNKNOWN, oneway=True, check=True, group="others", not_mine="true", peer=30, key="u2")
    others_ms = 0
    while len(asked) < 13:
        talk.wait(50)
        asked += answer(talk, mine)
        others_ms = others_ms or (talk.now - begun if checks(talk, 31) else 0)
    assert 1000 <= talk.now - begun <= 1600
    assert 0 < others_ms <= 200
    talk.wait(begun + 5000 - talk.now)
    assert answer(talk, mine), "the next round asks again, though the last member was asked less than an interval ago"


def test_a_turn_asks_a_bounded_number_of_members(talk):
    talk.broker.transactions.checks.asks_a_tick = 3
    sent = [prepare(talk, f"u{number}", peer=1) for number in range(9)]
    talk.wait(5000)
    assert len(checks(talk, 1)) == 9
    for number, half in enumerate(sent):
        end(talk, half, UNKNOWN, oneway=True, check=True, not_mine="true", peer=1, key=f"u{number}")
    counts = []
    for _ in range(4):
        talk.broker.tick(talk.instant)
        talk.run_effects()
        counts.append(sum(len(checks(talk, peer)) for peer in EVERYBODY))
    assert counts == [3, 3, 3, 0]


def test_one_round_asks_a_bounded_number_of_members_and_the_next_goes_on_behind_them(talk):
    talk.broker.transactions.checks.asked_max = 5
    sent = prepare(talk, peer=20)
    asked = []
    for _ in range(3):
        talk.wait(5000)
        join(talk)
        asked.append(answer(talk, sent))
    assert [len(each) for each in asked] == [5, 5, 5]
    assert set(asked[0] + asked[1] + asked[2]) == set(EVERYBODY)


def test_walks_that_were_forgotten_wait_for_the_next_round(talk):
    talk.broker.transactions.checks.walks.walks_max = 2
    sent = [prepare(talk, f"u{number}", peer=1) for number in range(3)]
    talk.wait(5000)
    assert len(checks(talk, 1)) == 3
    end(talk, sent[0], UNKNOWN, oneway=True, check=True, not_mine="true", peer=1, key="u0")
    talk.wait(0)
    assert not any(checks(talk, peer) for peer in EVERYBODY)
    assert talk.broker.transactions.index.checks(0).counted == 0
    talk.wait(5000)
    assert any(header.msg_id == "u0" for peer in EVERYBODY for header, _ in checks(talk, peer))


def test_the_next_member_is_asked_when_it_would_have_been_after_the_clock_was_set(make_talk):
    talk = make_talk(**CHECKS, transaction_checks_per_second=1)
    join(talk)
    sent = prepare(talk, peer=1)
    talk.wait(5000)
    assert answer(talk, sent) == [1]
    waits = talk.broker.transactions.checks.due() - talk.instant.steady
    talk.set_clock(-3_600_000)
    assert 0 < waits <= 1000
    assert talk.broker.transactions.checks.due() - talk.instant.steady == waits


# ---------------------------------------------------------------- by itself


def member(number):
    found = GroupMember(Peer(number, f"10.0.0.{number}:5000", 0), f"c{number}", 0, 0, 0)
    found.short_hash = number
    return found


def said(producer, answer):
    return Check(0, int(answer), producer)


def test_a_member_that_said_open_is_asked_again_but_for_one_check_in_four():
    members = [member(number) for number in range(1, 4)]
    history = [said(2, Answer.OPEN)]
    assert [first_asked(members, members[0], sent, history, 0).short_hash for sent in range(1, 9)] == [2, 2, 2, 1] * 2
    assert first_asked(members[:1], None, 1, history, 0).short_hash == 1  # it is gone


def test_rounds_take_turns_between_the_sender_and_the_ring():
    members = [member(number) for number in range(1, 5)]
    history = []
    for _ in range(6):
        asked = first_asked(members, members[2], len(history), history, 0)
        history.append(said(asked.short_hash, Answer.NONE))
    assert [check.producer for check in history] == [3, 1, 3, 2, 3, 4]


def test_the_ring_begins_anew_behind_its_end_and_the_sender_comes_last():
    members = [member(number) for number in range(1, 5)]
    history, asked = [said(3, Answer.NOT_MINE)], array("I", [3])
    while (found := next_asked(members, members[0], history, asked, 0)) is not None:
        history.append(said(found.short_hash, Answer.NOT_MINE))
        asked.append(found.short_hash)
    assert list(asked) == [3, 4, 2, 1]


def test_a_sender_alone_is_asked_again():
    alone = member(1)
    assert first_asked([alone], alone, 1, [said(1, Answer.NONE)], 0) is alone
    assert next_asked([alone], alone, [said(1, Answer.NOT_MINE)], [1], 0) is None


def test_groups_that_wait_take_turns_and_what_ends_waits_no_more():
    held = Walks()
    for index in range(4):
        held.begin(index, index % 2)
        held.asked(index, member(index + 1))
        assert held.go_on(index)
    assert not held.go_on(9)
    assert held.groups() == [0, 1]
    assert (held.first(0), list(held.take(0)), held.groups()) == (0, [1], [1, 0])
    held.begin(1, 1)  # the next round
    assert (held.first(1), held.waits(1), held.waits(3)) == (3, False, True)
    held.end(3)
    assert (held.first(1), held.groups(), len(held)) == (None, [0], 3)
