"""Bits beside messages: what they rule out is never evaluated again, and what comes out is the same with them and without."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon import sql92
from halfmoon.broker.pull import bitmaps as module
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from halfmoon.wire.record import decode_records
from tests.broker.pull.test_filters import T, bodies, by_sql, sql_header, subscribe
from tests.broker.talk import pull_header, send_header


@pytest.fixture
def evaluated(monkeypatch):
    """The properties, or the entries, that expressions are evaluated with, by expression."""
    seen: dict[str, list[bytes]] = {}
    matches, records = sql92.Filter.matches, sql92.Filter.records

    def one(wanted, block):
        seen.setdefault(wanted.expression, []).append(block)
        return matches(wanted, block)

    def many(wanted, area, base, entries, *rest):
        found = records(wanted, area, base, entries, *rest)
        seen.setdefault(wanted.expression, []).extend(entries[at * 20 : at * 20 + 20] for at in range(found[1]))
        return found

    monkeypatch.setattr(sql92.Filter, "matches", one)
    monkeypatch.setattr(sql92.Filter, "records", many)
    return seen


def send(talk, *values, topic=T):
    for value in values:
        talk.post(send_header(topic, properties=f"a\x01{value}\x02"), b"%d" % value, peer=9)
    talk.turn()


def read_all(talk, group, offset=0):
    seen = []
    while (reply := talk.ask(pull_header(T, group=group, expression=None, offset=offset))).code in (0, 20):
        seen += [int(message.body) for message in decode_records(reply.body)]
        offset = reply.header(PullMessageReply).next_begin_offset
    return seen


@pytest.mark.mission("001-13")
def test_what_the_bits_rule_out_is_evaluated_once_for_all_readings(make_talk, evaluated):
    talk = make_talk(filter_bitmap=True)
    subscribe(talk, by_sql("a = 7"), group="G")
    subscribe(talk, by_sql("a = 7"), group="H", peer=2)
    send(talk, *range(100))
    assert len(evaluated["a = 7"]) == 100  # once, though two groups want it

    for _ in range(3):
        assert read_all(talk, "G") == read_all(talk, "H") == [7]

    assert 100 + 6 <= len(evaluated["a = 7"]) < 100 + 6 + 30  # the match, and a maybe now and then


@pytest.mark.mission("001-13")
def test_a_pull_that_waits_does_not_evaluate_what_the_bits_rule_out(make_talk, evaluated):
    talk = make_talk(filter_bitmap=True)
    subscribe(talk, by_sql("a = 7"))
    send(talk, 0)
    opaque = talk.post(pull_header(T, expression=None, offset=1, wait_ms=15_000))
    talk.turn()
    send(talk, 1, 2, 3)
    assert talk.answer(opaque) is None
    send(talk, 7)
    assert bodies(talk.answer(opaque)) == [b"7"]
    assert len(evaluated["a = 7"]) == 5 + 1


@pytest.mark.mission("001-13")
@pytest.mark.parametrize("seed", range(3))
def test_the_filter_rules_out_nothing_that_matches_and_spares_nearly_all_evaluations_of_what_does_not(make_talk, evaluated, seed):
    chance = Random(seed)
    values = [chance.randrange(40) for _ in range(200)]
    expressions = [f"a BETWEEN {low} AND {low + chance.randrange(3)}" for low in chance.sample(range(38), 8)]
    found, costs = [], []
    for bits in (True, False):
        talk = make_talk(filter_bitmap=bits)
        for peer, expression in enumerate(expressions, 1):
            subscribe(talk, by_sql(expression), group=f"G{peer}", peer=peer)
        for start in range(0, len(values), 10):
            send(talk, *values[start : start + 10])
        before = sum(map(len, evaluated.values()))
        found.append([read_all(talk, f"G{peer}") for peer in range(1, 9)])
        costs.append(sum(map(len, evaluated.values())) - before)
    matches = sum(map(len, found[1]))
    assert found[0] == found[1]
    assert matches > 0
    assert costs[1] == 8 * 200  # without bits each reading evaluates everything
    assert matches <= costs[0] <= matches + 8 * 200 * 0.3  # a maybe now and then


def test_bits_of_long_values_that_are_read_again_and_again_are_not_made_for_many_messages_of_a_turn(make_talk, evaluated):
    talk, expression = make_talk(filter_bitmap=True), " AND ".join(f"a NOT CONTAINS 'x{number}'" for number in range(128))
    subscribe(talk, by_sql(expression))
    for _ in range(20):
        talk.post(send_header(T, properties=f"a\x01{'1' * 30_000}\x02"), b"", peer=9)
    talk.turn()
    assert len(evaluated[expression]) == 1


def test_without_the_setting_no_bits_are_made(talk, evaluated):
    subscribe(talk, by_sql("a = 7"))
    send(talk, *range(100))
    assert evaluated == {}
    assert read_all(talk, "G") == [7]
    assert len(evaluated["a = 7"]) == 100


def condition(random):
    name = random.choice(["a", "b"])
    return random.choice([
        f"{name} > {random.randrange(9)}", f"{name} = {random.randrange(9)}", f"{name} IS NULL", f"{name} IN ('1', '4', 'x')",
        f"NOT ({name} = '{random.randrange(9)}')", f"{name} BETWEEN 2 AND {random.randrange(2, 9)}", f"{name} <> 'x'",
    ])  # fmt: skip


@pytest.mark.mission("001-14")
@pytest.mark.parametrize("seed", range(12))
def test_with_bits_and_without_the_same_comes(make_talk, seed, monkeypatch):
    monkeypatch.setattr(module, "RUN_MESSAGES", 20)
    monkeypatch.setattr(module, "RUNS_OF_QUEUE_MAX", 6)
    results, ruled_out = [], []
    for on in (True, False):
        random, talk = Random(seed), make_talk(filter_bitmap=on, bloom_groups=1, bloom_error_percent=random_error(seed))
        maps = talk.broker.pulls.filters.bitmaps
        groups, seen = [f"G{number}" for number in range(6)], []
        for turn in range(25):
            group = random.choice(groups)
            words = [condition(random) for _ in range(random.randrange(1, 4))]
            expression = random.choice([" AND ", " OR "]).join(words)
            if random.random() < 0.4:  # an expression changes, so older bits say nothing of it
                subscribe(talk, by_sql(expression, version=turn + 1), group=group, peer=1 + groups.index(group))
            for _ in range(random.randrange(12)):
                text = "".join(f"{name}\x01{random.choice('012345678x')}\x02" for name in "ab" if random.random() < 0.8)
                talk.post(send_header(T, properties=text), b"%d" % turn, peer=9)
            talk.turn()
            reader = random.choice(groups)
            reply = talk.ask(pull_header(T, group=reader, expression=None, offset=random.randrange(turn * 3 + 1)))
            seen.append((reply.code, reply.body, reply.fields))
            if maps is not None:
                known = [info.subscriptions[T].expression for info in talk.broker.clients.consumers.values()]
                for group in talk.broker.clients.consumers:
                    for expression in known:
                        possible = maps.possible((T, 0), 0, 300, group, expression)
                        ruled_out.append(possible is not None and len(possible) < 300)
        results.append(seen)
    assert results[0] == results[1]
    assert any(ruled_out)


def random_error(seed):
    return [5, 20, 90][seed % 3]


@pytest.mark.mission("001-14")
def test_bits_made_for_another_expression_or_before_it_was_known_say_nothing(make_talk):
    talk = make_talk(filter_bitmap=True)
    send(talk, 1, 7)
    subscribe(talk, by_sql("a = 1"))
    send(talk, 1, 7)
    assert read_all(talk, "G") == [1, 1]
    subscribe(talk, by_sql("a = 7", version=2))
    assert read_all(talk, "G") == [7, 7]
    send(talk, 1, 7)
    assert read_all(talk, "G") == [7, 7, 7]
    assert bodies(talk.ask(sql_header("a = 1"))) == [b"1"] * 3  # brought by the pull, while the group's is another
    assert bodies(talk.ask(sql_header("a = 7"))) == [b"7"] * 3


def test_a_topic_that_begins_anew_has_no_old_bits(make_talk):
    talk = make_talk(filter_bitmap=True)
    subscribe(talk, by_sql("a = 7", topic="Again"))
    send(talk, 1, 2, 3, topic="Again")
    talk.ask(DeleteTopicInBroker(topic="Again"))
    assert not talk.broker.pulls.filters.bitmaps._queues
    assert talk.broker.pulls.filters.bitmaps._bytes == 0


def test_senders_wait_only_so_long_for_bits(make_talk, monkeypatch, evaluated):
    monkeypatch.setattr(module, "STEPS_OF_ARRIVALS", 100)
    monkeypatch.setattr("halfmoon.broker.pull.filters.STEPS_OF_ARRIVALS", 100)
    talk = make_talk(filter_bitmap=True)
    subscribe(talk, by_sql("a = 7"))
    send(talk, *range(200))
    assert 5 < len(evaluated["a = 7"]) < 100  # each turn evaluates some; 200 sends of one connection take several
    assert read_all(talk, "G") == [7]


def test_bits_are_kept_for_a_bounded_number_of_messages(make_talk, monkeypatch):
    monkeypatch.setattr(module, "RUN_MESSAGES", 10)
    monkeypatch.setattr(module, "RUNS_OF_QUEUE_MAX", 3)
    monkeypatch.setattr(module, "BITS_BYTES_MAX", 14 * 50)
    talk = make_talk(filter_bitmap=True)
    subscribe(talk, *[by_sql("a = 7", topic=f"T{number}") for number in range(5)])
    for _ in range(8):
        for number in range(5):
            send(talk, 1, 2, 3, 4, 7, topic=f"T{number}")
    maps = talk.broker.pulls.filters.bitmaps
    kept = {key: sum(len(run.bits) for run in runs) for key, runs in maps._queues.items()}
    assert sum(kept.values()) == maps._bytes <= 14 * 50
    assert max(kept.values()) <= 14 * 30
    assert ("T4", 0) in kept
