"""Filters that only mean harm, as real requests: refused soon, forgotten whole, and felt by nobody else."""

from __future__ import annotations

import gc
import tracemalloc
from time import process_time

import pytest

from halfmoon import sql92
from halfmoon.wire.bodies import CheckClientBody, SubscriptionData, to_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.client import CheckClientConfig
from halfmoon.wire.headers.pull import LitePullMessage, PullMessage
from tests.broker.pull.test_filters import T, by_sql, sql_header, subscribe
from tests.broker.talk import pull_header, send_header

EXPRESSIONS = {
    "64 KiB": "a = 1 OR " * 7_300 + "a = 2",
    "10,000 brackets": "(" * 10_000 + "a = 1" + ")" * 10_000,
    "10,000 NOT": "NOT " * 10_000 + "a = 1",
    "20,000 OR": " OR ".join("a=1" for _ in range(20_000)),
    "1 MB unterminated text": "a = '" + "x" * 1_000_000,
    "1 MB of quotes": "a = " + "'" * 1_000_001,
    "an endless number": "a > " + "9" * 30_000,
    "a text in 32 KiB": "a = '" + "x" * 32_700,
    "IN without end": "a IN (" + ",".join(f"'{number}'" for number in range(5_000)),
    "32 KiB of comment": "/*" + "*" * 32_000,
}
REFUSED_MS = 100
TRIES = 3
"""The best of so many counts, each with an expression of its own: on a loaded machine the same work takes several times as long."""


def requests(expression):
    """The ways by which an expression reaches a broker."""
    header = sql_header(expression)
    lite = LitePullMessage(**{name: getattr(header, name) for name in PullMessage.__struct_fields__})
    check = to_json(CheckClientBody("c", "G", SubscriptionData.of(by_sql(expression))))
    return {"pull": (header, b"", JSON), "lite": (lite, b"", JSON), "check": (CheckClientConfig(), check, JSON)}


@pytest.mark.parametrize("way", ["pull", "lite", "check"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_it_is_refused_at_once_and_others_do_not_wait(talk, name, way):
    talk.send(T, b"x")
    took_ms = []
    for number in range(TRIES):
        header, body, serialization = requests(" " * number + EXPRESSIONS[name])[way]
        opaque = talk.post(header, body, serialization=serialization)
        other = talk.post(pull_header(T), peer=2)

        begin = process_time()
        talk.turn()
        took_ms.append((process_time() - begin) * 1000)

        assert talk.answer(opaque).code == 23
        assert talk.answer(other, peer=2).code == 0
    assert min(took_ms) < REFUSED_MS


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_by_heartbeat_it_is_refused_too_or_else_to_the_pulls(talk, name):
    took_ms = []
    for number in range(TRIES):
        begin = process_time()
        code = subscribe(talk, by_sql(" " * number + EXPRESSIONS[name])).code
        if code == 0:
            code = talk.ask(pull_header(T, expression=None)).code
        took_ms.append((process_time() - begin) * 1000)
        assert code == 23
    assert min(took_ms) < 2 * REFUSED_MS


def test_the_other_serialization_refuses_what_it_can_carry(talk):
    assert talk.ask(sql_header("(" * 10_000), serialization=ROCKETMQ).code == 23


def test_the_memory_comes_back(talk):
    def everything():
        for expression in EXPRESSIONS.values():
            for header, body, serialization in requests(expression).values():
                assert talk.ask(header, body, serialization=serialization).code == 23

    everything()  # what is made once, caches of the standard library among it
    gc.collect()
    tracemalloc.start()
    growths = []
    for _ in range(3):  # other threads of this process allocate, too, but not each time
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            everything()
        gc.collect()
        growths.append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert min(growths) < 100_000


LONG = "a IN (" + ",".join("''" for _ in range(10_000)) + ") OR b = "


def posted(talk, expressions):
    """Send pulls with these expressions, each from a connection of its own."""
    return {talk.post(sql_header(each), peer=peer): peer for peer, each in enumerate(expressions, 2)}


def test_many_long_expressions_at_once_are_read_one_a_turn(talk, monkeypatch):
    read = []
    compiled = sql92.compile
    monkeypatch.setattr(sql92, "compile", lambda expression: read.append(turn) or compiled(expression))
    talk.send(T, b"x")
    posts = posted(talk, [f"{LONG}{'' if number % 2 else number}" for number in range(8)])
    other = talk.post(pull_header(T), peer=50)

    codes = []
    for turn in range(10):
        talk.broker.tick(talk.instant) if turn else talk.broker.commit(talk.instant)
        talk.run_effects()
        codes += [reply.code for opaque, peer in posts.items() if (reply := talk.answer(opaque, peer=peer))]
        assert turn or talk.answer(other, peer=50).code == 0

    assert codes == [20, 23] * 4
    assert len(read) == len(set(read)) == 5 + 3
    assert talk.broker.holds.count == talk.broker.holds.room == 0


def test_many_long_expressions_to_be_checked_at_once_are_refused_but_for_the_first(talk):
    def check(number):
        return to_json(CheckClientBody("c", "G", SubscriptionData.of(by_sql(f"{LONG}{number}"))))

    posts = [talk.post(CheckClientConfig(), check(number)) for number in range(4)]
    talk.turn()
    assert [talk.answer(opaque).code for opaque in posts] == [0, 2, 2, 2]
    assert talk.ask(CheckClientConfig(), check(5)).code == 0


def test_a_broker_that_stops_refuses_pulls_whose_expressions_were_not_read_yet(talk):
    talk.send(T, b"x")
    posts = posted(talk, [f"{LONG}{number}" for number in range(3)])
    talk.turn()
    talk.broker.stop(talk.instant)
    talk.run_effects()
    assert [talk.answer(opaque, peer=peer).code for opaque, peer in posts.items()] == [20, 14, 14]


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_pulls_with_long_expressions_that_wait_count_as_several(talk, kind):
    talk.send(T, b"x")
    longest = "a IN (" + ",".join(f"'{number:05d}'" for number in range(3_900)) + ")"
    if kind == "TAG":
        longest = "||".join(f"{number:05d}" for number in range(4_400))
    held = []
    for _ in range(120):
        header = pull_header(T, offset=1, wait_ms=15_000, expression=longest)
        header.expression_type = kind
        opaque = talk.post(header)
        talk.turn()
        talk.wait(1)
        held.append(talk.answer(opaque) is None)
    assert 60 < sum(held) < 100
    talk.lose(1)
    assert talk.broker.holds.room == 0


def test_plans_of_expressions_are_not_remembered_without_end(talk):
    talk.broker.pulls.plans_characters_max = 1_000
    talk.send(T, b"x")
    for number in range(100):
        talk.ask(pull_header(T, expression=f"tag{number:097d}"))
    assert len(talk.broker.pulls.plans) <= 11


def test_the_dearest_expression_that_is_taken_does_not_stop_the_others(talk):
    wide = " OR ".join(f"p{number} = 'y'" for number in range(250))
    properties = "".join(f"p{number}\x01{'x' * 20}\x02" for number in range(0, 250, 2))
    for _ in range(600):
        talk.post(send_header(T, properties=properties), b"x")
    talk.turn()
    talk.ask(sql_header(wide))  # from here on it is compiled
    posts = {talk.post(sql_header(wide), peer=peer): peer for peer in range(1, 21)}

    turns, answered = [], []
    while posts and len(turns) < 100:
        begin = process_time()
        if turns:
            talk.broker.tick(talk.instant)
        else:
            talk.broker.commit(talk.instant)
        turns.append((process_time() - begin) * 1000)
        talk.run_effects()
        answered.append([opaque for opaque, peer in posts.items() if talk.answer(opaque, peer=peer)])
        for opaque in answered[-1]:
            del posts[opaque]

    assert not posts
    assert max(map(len, answered)) <= 3  # the others wait for a turn of their own
    assert sorted(turns)[len(turns) // 2] < 20
