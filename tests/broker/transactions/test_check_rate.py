"""How fast groups are asked: buckets, what waits for its turn, and how much one tick does."""

from __future__ import annotations

from halfmoon.broker.transactions import check_rate
from halfmoon.broker.transactions.check_rate import ThrottledGroups, TokenBucket
from tests.broker.half import CHECKS, GROUP, checks, prepare, produce


def test_a_large_check_leaves_a_debt_that_time_pays():
    bucket = TokenBucket(10.0, 2.0, 2.0, 0)
    assert bucket.take(0, 4 * check_rate.CHECK_BYTES)
    assert not bucket.take(100)
    assert bucket.due() == 300
    assert not bucket.take(299)
    assert bucket.take(300)


def test_throttled_groups_go_on_in_order_of_time_and_keep_nothing_twice():
    end = 10_000
    throttled = ThrottledGroups()
    throttled.begin(7, 100, 50)
    throttled.begin(8, 101, 40)
    for index in (100, 102, 102, 99, *range(103, end)):
        throttled.add(7, index)
    assert (throttled.due(), throttled.next(39), throttled.next(50)) == (40, None, 8)
    assert throttled.first(8) == 101
    throttled.go_on(8, 60)
    assert throttled.next(50) == 7
    found = []
    while (index := throttled.first(7)) is not None:
        found.append(index)
        throttled.add(7, index)
        throttled.pass_on(7)
    assert found == [100, *range(102, end)]
    assert 7 not in throttled
    assert 8 in throttled
    assert len(throttled) == 1


def test_throttled_groups_are_looked_at_once_a_message_and_not_once_a_group(make_talk, monkeypatch):
    talk = make_talk(transaction_checks_per_second=10, **CHECKS)
    produce(talk, *(f"g{k}" for k in range(30)))
    for k in range(300):
        prepare(talk, f"m{k}", group=f"g{k % 30}")
    index, seen = talk.broker.transactions.index, []
    pending = index.pending

    def counted(*given):
        found = pending(*given)
        seen.append(len(found[0]))
        return found

    monkeypatch.setattr(index, "pending", counted)
    talk.wait(6500)

    assert len({header.msg_id for header, _ in checks(talk)}) == 300
    assert 300 <= sum(seen) <= 2 * 300 + len(seen)  # a slice that ends early is read again from where it ended


def test_large_bodies_are_read_a_few_a_tick_and_sent_at_a_pace(make_talk, monkeypatch):
    talk = make_talk(store={"commit_log_file_bytes": 4 << 20}, transaction_checks_per_second=100, **CHECKS)
    talk.broker.transactions.checks.bytes_a_tick = 100_000
    produce(talk, GROUP)
    for k in range(20):
        prepare(talk, f"u{k}", body=bytes(64 * 1024))
    service, sent = talk.broker.transactions.checks, []
    tick = service.tick
    monkeypatch.setattr(service, "tick", lambda now: (tick(now), sent.append(service.counters.sent)))
    talk.wait(5050)
    assert max(after - before for before, after in zip([0, *sent], sent)) <= 2
    assert sent[-1] < 8
    talk.wait(1500)
    assert len(checks(talk)) == 20


def test_many_groups_are_learned_over_several_ticks(make_talk):
    talk = make_talk(**CHECKS)
    talk.broker.transactions.checks.groups_a_tick = 5
    produce(talk, *(f"g{k}" for k in range(23)))
    for k in range(23):
        prepare(talk, f"m{k}", group=f"g{k}")
    talk.wait(6000)

    assert len(checks(talk)) == 23
