"""Claims on rows of the outbox, in a real SQLite file and a real PostgreSQL: whose they are, in what order, and for how long."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from hypothesis import Phase, given, settings
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


@pytest.mark.parametrize("zone", ["+05:30", "-08:00"])
def test_the_time_of_a_database_does_not_depend_on_its_zone(outbox, zone):
    with outbox.provider.fresh() as rows:
        if rows.dialect == "mysql":
            rows.run(f"SET time_zone = '{zone}'")
        elif rows.dialect == "postgresql":
            rows.run(f"SET TIME ZONE '{zone}'")

        assert abs(clock_ms(rows) - time.time_ns() // 1_000_000) < 60_000


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


# ---------------------------------------------------------------- any history


class Known:
    """What is known of a row: its key, attempts and last error, who has it until when, and until when it waits."""

    def __init__(self, key):
        self.key, self.attempts, self.error, self.owner, self.claimed_until, self.waits_until = key, 0, "", "", 0, 0


class History:
    """Two relays that claim and settle, and what is known of the rows by event id, in their order."""

    def __init__(self, outbox):
        self.outbox, self.now, self.known, self.hands = outbox, 1_000, {}, {"r1": [], "r2": []}
        self._numbers = itertools.count()

    def put(self, key):
        event_id = f"E{next(self._numbers)}"
        self.outbox.put(event_id, key=key)
        self.known[event_id] = Known(key)

    def wait(self, ms):
        self.now += ms

    def free(self):
        """The ids of rows whose turn it is. Who is claimed or waits holds later ones of its key back; who is parked does not."""
        behind, turn = set(), []
        for event_id, row in self.known.items():
            if max(row.claimed_until, row.waits_until) > self.now:
                behind |= {row.key} if row.key and row.waits_until != PARKED_MS else set()
            elif row.key not in behind:
                turn.append(event_id)
        return turn

    def free_count(self):
        """The number of rows that nobody has and that do not wait, held back or not."""
        return sum(max(row.claimed_until, row.waits_until) <= self.now for row in self.known.values())

    def claim(self, name, count):
        if self.hands[name]:
            return
        turn, until = self.free(), self.now + 50
        self.hands[name] = got = claimed(self.outbox, name, now=self.now, until=until, count_max=count)
        # of more free rows than it may take, it looks at the oldest: some of them may be held back
        assert ids(got) == ([one for one in turn if one in ids(got)] if count < self.free_count() else turn)
        assert bool(got) == bool(turn)
        for one in got:
            row = self.known[one.event_id]
            row.attempts, row.owner, row.claimed_until = row.attempts + 1, name, until
            assert (one.attempts, one.error) == (row.attempts, row.error)

    def settle(self, name, how):
        hand, self.hands[name] = self.hands[name], []
        still = [row for one in hand if (row := self.known.get(one.event_id)) and row.owner == name]
        seqs, next_ms = [one.seq for one in hand], PARKED_MS if how == "parked" else self.now + 20
        if how == "sent":
            assert settle(self.outbox, name, sent=seqs) == len(still), "a relay whose claim was taken over removes nothing"
            self.known = {event_id: row for event_id, row in self.known.items() if row not in still}
            return
        failed = [Failure(seq, how, next_ms, int(how != "closed")) for seq in seqs] if how != "unsent" else []
        settle(self.outbox, name, failed=failed, unsent=[] if failed else seqs)
        for row in still:
            row.owner, row.claimed_until = "", 0
            row.attempts -= how in ("closed", "unsent")  # only an attempt counts
            if how != "unsent":
                row.error, row.waits_until = how, next_ms


OWNERS = st.sampled_from(["r1", "r2"])
WORDS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(["", "a", "a", "b"])),
        st.tuples(st.just("claim"), OWNERS, st.sampled_from([1, 2, 3, 100])),
        st.tuples(st.just("settle"), OWNERS, st.sampled_from(["sent", "failed", "closed", "parked", "unsent"])),
        st.tuples(st.just("wait"), st.integers(1, 60)),
    ),
    min_size=15,
    max_size=40,
)


def test_what_is_claimed_is_nobody_elses_until_the_claim_ends(outbox):
    outbox.put("A", "B")
    first = claimed(outbox, "r1", count_max=1)

    assert ids(claimed(outbox, "r2", now=2_000)) == ["B"]
    assert claimed(outbox, "r3", now=60_000) == []
    again = claimed(outbox, "r3", now=61_000, until=120_000)

    assert ids(again) == ["A", "B"]
    assert settle(outbox, "r1", sent=[one.seq for one in first]) == 0, "the first relay lost its claim"
    assert outbox.ids == ["A", "B"]


def test_a_row_that_was_parked_holds_nothing_back(outbox):
    outbox.put("k1", "k2", key="k")
    settle(outbox, failed=[Failure(claimed(outbox, count_max=1)[0].seq, "no", PARKED_MS)])

    assert ids(claimed(outbox, now=10**15, until=10**15 + 1)) == ["k2"]


@pytest.mark.slow
def test_whatever_relays_do_rows_are_claimed_in_turn_and_by_one_at_a_time(outbox):
    @settings(max_examples=100 if outbox.provider.dialect == "sqlite" else 40, phases=[Phase.generate], deadline=None)
    @given(WORDS)
    def play(words):
        outbox.tell("DELETE FROM halfmoon_outbox")
        history = History(outbox)
        for word, *rest in words:
            getattr(history, word)(*rest)

    play()


def test_of_more_free_rows_than_it_takes_a_claim_may_look_at_held_back_ones(outbox):
    """A history that was drawn once."""
    history = History(outbox)
    for word, *rest in [
        ("put", "a"), ("claim", "r2", 1), ("put", ""), ("put", ""), ("put", "a"), ("put", ""), ("claim", "r1", 3),
    ]:  # fmt: skip
        getattr(history, word)(*rest)
    assert ids(history.hands["r1"]) == ["E1", "E2"]


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
