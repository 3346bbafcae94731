"""Claims on rows of the outbox, in a real SQLite file and a real PostgreSQL: whose they are, in what order, and for how long."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halfmoon.events import dbapi
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.outbox.claims import (
    CLAIM_SEEN_MAX_MS,
    WAIT_MAX_MS,
    WAIT_SEEN_MAX_MS,
    Claim,
    Failure,
    claim,
    clock_ms,
    error_text,
    fail,
    release,
    remove,
    skips_locked,
)
from tests.events.outbox.outboxes import Outbox
from tests.events.real_databases import connects

MB = 1024 * 1024


@pytest.fixture
def postgres_outbox(postgres_url):
    found = Outbox(postgres_url)
    yield found
    found.close()


def claimed(outbox, owner="r1", *, now=1_000, until=61_000, count_max=100, bytes_max=16 * MB, without=()):
    with outbox.provider.fresh() as rows:
        return claim(rows, Claim(owner, now, until), count_max=count_max, bytes_max=bytes_max, without=without)


def settle(outbox, owner="r1", *, sent=(), failed=(), unsent=()):
    with outbox.provider.fresh() as rows:
        fail(rows, owner, failed, 0)
        release(rows, owner, unsent)
        return remove(rows, owner, sent)


def ids(rows):
    return [one.event_id for one in rows]


def test_rows_are_claimed_in_their_order_and_removed_when_they_were_sent(outbox):
    outbox.put("A", "B", "C", body=b"hello", now_ms=7)

    first = claimed(outbox, count_max=2)

    assert [(one.event_id, one.topic, one.created_ms, one.attempts, one.error) for one in first] == [
        ("A", "TP_ORDER", 7, 1, ""),
        ("B", "TP_ORDER", 7, 1, ""),
    ]
    assert settle(outbox, sent=[one.seq for one in first]) == 2
    assert outbox.ids == ["C"]


def test_what_is_claimed_is_nobody_elses_until_the_claim_ends(outbox):
    outbox.put("A", "B")
    first = claimed(outbox, "r1", count_max=1)

    assert ids(claimed(outbox, "r2", now=2_000)) == ["B"]
    assert claimed(outbox, "r3", now=60_000) == []
    again = claimed(outbox, "r3", now=61_000, until=120_000)

    assert ids(again) == ["A", "B"]
    assert {one.attempts for one in again} == {2}
    assert settle(outbox, "r1", sent=[one.seq for one in first]) == 0, "the first relay lost its claim"
    assert outbox.ids == ["A", "B"]


def test_a_claim_that_ends_later_than_any_claim_may_last_does_not_count(outbox):
    outbox.put("far", "near", key="k")
    claimed(outbox, "wrong clock", until=1_000 + 10 * CLAIM_SEEN_MAX_MS, count_max=1)
    assert ids(claimed(outbox, "r1", until=1_000 + CLAIM_SEEN_MAX_MS)) == ["far", "near"]

    assert claimed(outbox, "r2") == [], "a claim that may be is honoured, also by who is a little behind"
    assert settle(outbox, "wrong clock", sent=[1, 2]) == 0


def test_a_wait_that_is_longer_than_any_row_may_wait_does_not_count(outbox):
    outbox.put("far", "near", "parked")
    waits = (1_000 + 10 * WAIT_SEEN_MAX_MS, 1_000 + WAIT_MAX_MS, PARKED_MS)
    settle(outbox, failed=[Failure(row.seq, "no", next_ms) for row, next_ms in zip(claimed(outbox), waits, strict=True)])

    assert ids(claimed(outbox)) == ["far"]


def test_the_time_is_that_of_the_database_and_not_of_the_machine_of_the_relay(postgres_outbox, monkeypatch):
    here_ms = time.time_ns() // 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: 0)

    with postgres_outbox.provider.fresh() as rows:
        assert abs(clock_ms(rows) - here_ms) < 60_000


@pytest.mark.parametrize("zone", ["+05:30", "-08:00"])
def test_the_time_of_a_database_does_not_depend_on_its_zone(outbox, zone):
    with outbox.provider.fresh() as rows:
        if rows.dialect == "mysql":
            rows.run(f"SET time_zone = '{zone}'")
        elif rows.dialect == "postgresql":
            rows.run(f"SET TIME ZONE '{zone}'")

        assert abs(clock_ms(rows) - time.time_ns() // 1_000_000) < 60_000


def test_rows_of_a_transaction_that_was_rolled_back_are_never_claimed(outbox):
    with outbox.engine.connect() as connection:
        outbox.add(connection, "A")
        connection.rollback()
    outbox.put("B")

    assert ids(claimed(outbox)) == ["B"]


def test_rows_of_an_open_transaction_are_not_waited_for_and_not_forgotten(postgres_outbox):
    outbox = postgres_outbox
    with outbox.engine.connect() as connection:
        outbox.add(connection, "A")
        outbox.put("B")

        assert ids(claimed(outbox)) == ["B"]
        connection.commit()

    assert ids(claimed(outbox)) == ["A"]


@pytest.mark.parametrize("looks", [True, False], ids=["a look in between", "no look in between"])
def test_of_overlapping_transactions_of_a_key_what_is_committed_goes_first_then_what_was_published_first(postgres_outbox, looks):
    outbox, order = postgres_outbox, []
    with outbox.engine.connect() as connection:
        outbox.add(connection, "first to publish", key="k")
        outbox.put("first to commit", key="k")
        if looks:
            order += claimed(outbox)
            settle(outbox, sent=[one.seq for one in order])
        connection.commit()

    order += claimed(outbox)
    assert ids(order) == (["first to commit", "first to publish"] if looks else ["first to publish", "first to commit"])


def test_a_failure_is_kept_with_its_row_and_the_row_waits(outbox):
    outbox.put("A", "B")
    first = claimed(outbox)
    settle(outbox, failed=[Failure(first[0].seq, "ConnectFailed: no", 5_000)], unsent=[first[1].seq])

    assert ids(claimed(outbox, "r2", now=4_999)) == ["B"]
    again = claimed(outbox, "r2", now=5_000)
    assert [(one.event_id, one.attempts, one.error) for one in again] == [("A", 2, "ConnectFailed: no")]


def test_a_row_that_was_not_tried_counts_no_attempt(outbox):
    outbox.put("A")
    settle(outbox, unsent=[one.seq for one in claimed(outbox)])

    assert [one.attempts for one in claimed(outbox)] == [1]


def test_a_way_that_was_closed_counts_no_attempt_but_the_error_is_kept(outbox):
    outbox.put("A")
    settle(outbox, failed=[Failure(claimed(outbox)[0].seq, "ConnectFailed: no", 0, 0)])

    assert [(one.attempts, one.error) for one in claimed(outbox)] == [(1, "ConnectFailed: no")]


def test_rows_behind_one_of_their_key_that_waits_or_is_claimed_are_left_and_others_are_not(outbox):
    outbox.put("k1", "k2", "k3", key="k")
    outbox.put("other", key="o")
    outbox.put("free")
    first = claimed(outbox, "r1", count_max=1)

    assert ids(claimed(outbox, "r2")) == ["other", "free"]
    settle(outbox, "r1", failed=[Failure(first[0].seq, "no", 5_000)])
    assert claimed(outbox, "r2", now=4_000) == []
    assert ids(claimed(outbox, "r2", now=5_000)) == ["k1", "k2", "k3"]


def test_many_rows_behind_one_that_waits_do_not_keep_others_from_being_found(outbox):
    outbox.put(*(f"k{at}" for at in range(500)), key="k")
    outbox.put("other")
    settle(outbox, failed=[Failure(claimed(outbox, count_max=1)[0].seq, "no", 5_000)])

    assert ids(claimed(outbox, count_max=10)) == ["other"]


def test_many_keys_that_are_held_back_are_looked_past(outbox):
    with outbox.engine.begin() as connection:
        for at in range(90):
            outbox.add(connection, f"first{at}", key=f"k{at % 30}")
    outbox.put(*(f"free{at}" for at in range(10)))
    heads = claimed(outbox, count_max=30)
    settle(outbox, failed=[Failure(one.seq, "no", 5_000) for one in heads])

    assert ids(claimed(outbox, count_max=10)) == [f"free{at}" for at in range(10)]


def test_a_row_that_was_given_up_holds_nothing_back(outbox):
    outbox.put("k1", "k2", key="k")
    settle(outbox, failed=[Failure(claimed(outbox, count_max=1)[0].seq, "no", PARKED_MS)])

    assert ids(claimed(outbox, now=10**15, until=10**15 + 1)) == ["k2"]


def test_topics_are_left_out(outbox):
    outbox.put("A", topic="TP_GONE")
    outbox.put("B", topic="TP_ALSO")
    outbox.put("C")

    assert ids(claimed(outbox, without={"TP_GONE", "TP_ALSO"})) == ["C"]
    with dbapi.provider(connects(outbox.url)).fresh() as rows:
        assert ids(claim(rows, Claim("r2", 1_000, 61_000), count_max=9, bytes_max=MB, without=["TP_GONE"])) == ["B"]


def test_a_claim_holds_a_bounded_number_of_bytes_and_at_least_one_row(outbox):
    outbox.put("A", "B", "C", body=b"x" * MB)

    assert ids(claimed(outbox, bytes_max=10)) == ["A"]
    assert ids(claimed(outbox, bytes_max=2 * MB)) == ["B"]


def test_two_relays_that_claim_at_the_same_moment_share_the_rows(postgres_outbox):
    outbox = postgres_outbox
    outbox.put(*(f"E{at}" for at in range(300)))

    with outbox.provider.fresh() as one, outbox.provider.fresh() as other:
        mine = claim(one, Claim("r1", 1_000, 61_000), count_max=100, bytes_max=MB)
        its = claim(other, Claim("r2", 1_000, 61_000), count_max=100, bytes_max=MB)

    assert len(mine) == len(its) == 100
    assert not {one.seq for one in mine} & {one.seq for one in its}


def test_claims_at_the_same_moment_keep_the_order_of_a_key(postgres_outbox):
    outbox = postgres_outbox
    outbox.put("k1", key="k")
    outbox.put("x1", "x2")
    outbox.put("k2", key="k")
    outbox.put("x3")

    with outbox.provider.fresh() as one, outbox.provider.fresh() as other:
        assert ids(claim(one, Claim("r1", 1_000, 61_000), count_max=2, bytes_max=MB)) == ["k1", "x1"]
        its = claim(other, Claim("r2", 1_000, 61_000), count_max=10, bytes_max=MB)

    assert ids(its) == ["x2", "x3"], "k2 would overtake k1"
    assert [one.attempts for one in claimed(outbox, "r3", now=61_000, until=99_000) if one.event_id == "k2"] == [1]


def test_many_relays_in_threads_claim_every_row_once(outbox):
    outbox.put(*(f"E{at}" for at in range(200)))
    got, lock = [], threading.Lock()

    def work(owner):
        while True:
            mine = claimed(outbox, owner, count_max=7)
            with lock:
                got.extend(ids(mine))
            if not mine:
                return
            settle(outbox, owner, sent=[one.seq for one in mine])

    threads = [threading.Thread(target=work, args=(f"r{at}",)) for at in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    assert sorted(got) == sorted(f"E{at}" for at in range(200))
    assert outbox.ids == []


WORDS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(["", "a", "b"])),
        st.tuples(st.sampled_from(["claim"]), st.sampled_from(["r1", "r2"]), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.sampled_from(["r1", "r2"]), st.sampled_from(["sent", "failed", "unsent"])),
        st.tuples(st.just("pass"), st.integers(1, 40)),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS)
def test_whatever_relays_do_no_two_have_a_row_and_no_row_overtakes_one_of_its_key(sqlite_outbox, words):
    outbox = sqlite_outbox
    outbox.tell("DELETE FROM halfmoon_outbox")
    now, keys, hands, waiting = 1_000, {}, {"r1": [], "r2": []}, {}
    for word in words:
        if word[0] == "put":
            event_id = f"E{len(keys)}"
            outbox.put(event_id, key=word[1])
            keys[event_id] = word[1]
        elif word[0] == "pass":
            now += word[1]
        elif word[0] == "claim" and not hands[word[1]]:
            hands[word[1]] = got = claimed(outbox, word[1], now=now, until=now + 10**6, count_max=word[2])
            assert [one.seq for one in got] == sorted(one.seq for one in got)
            held = {one.event_id for hand, rows in hands.items() for one in rows if hand != word[1]}
            blocked = held | {event_id for event_id, until in waiting.items() if until > now}
            there = outbox.ids
            for one in got:
                assert one.event_id not in blocked
                earlier = [each for each in there[: there.index(one.event_id)] if keys[each] and keys[each] == keys[one.event_id]]
                assert set(earlier) <= set(ids(got))
        elif word[0] == "settle":
            rows, hands[word[1]] = hands[word[1]], []
            seqs = [one.seq for one in rows]
            if word[2] == "sent":
                assert settle(outbox, word[1], sent=seqs) == len(seqs)
            elif word[2] == "failed":
                settle(outbox, word[1], failed=[Failure(seq, "no", now + 20) for seq in seqs])
                waiting |= dict.fromkeys(ids(rows), now + 20)
            else:
                settle(outbox, word[1], unsent=seqs)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 10_000, "ü" * 600])
def test_any_error_can_be_kept(outbox, text):
    outbox.put("A")
    settle(outbox, failed=[Failure(claimed(outbox)[0].seq, error_text(ValueError(text)), 0)])

    assert claimed(outbox)[0].error.startswith("ValueError: ")


# ---------------------------------------------------------------- operators


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("10.11.19-MariaDB-0+deb12u1", True),
        ("10.6.0-MariaDB", True),
        ("10.5.28-MariaDB", False),
        ("5.5.5-10.11.2-MariaDB", True),
        ("8.0.1", True),
        ("8.4.3-log", True),
        ("5.7.44", False),
        ("something", False),
    ],
)
def test_skip_locked_is_asked_of_those_that_know_it(version: str, known: bool):
    assert skips_locked(version) is known
