"""Bloom filters of matches: what they exclude is not evaluated again, and what comes out is the same with them and without."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon import sql92
from halfmoon.broker.pull.bloom import ENTRIES_MAX, EXPRESSIONS_MAX, QUEUES_MAX, Matches, QueueMatches, key_of
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from halfmoon.wire.record import decode_records
from tests.broker.pull.test_filters import T, bodies, by_sql, sql_header, subscribe
from tests.broker.talk import pull_header, send_header


@pytest.fixture
def evaluated(monkeypatch):
    """How many records each expression was evaluated on."""
    seen: dict[str, int] = {}
    records = sql92.Filter.records

    def counted(wanted, *rest):
        found = records(wanted, *rest)
        seen[wanted.expression] = seen.get(wanted.expression, 0) + found[1]
        return found

    monkeypatch.setattr(sql92.Filter, "records", counted)
    return seen


def send(talk, *values, topic=T):
    for value in values:
        talk.post(send_header(topic, properties=f"a\x01{value}\x02"), b"%d" % value, peer=9)
    talk.turn()


def possible_of(queue, offset, count, expression):
    """The messages that may match, None: nothing is known of them."""
    known = queue.known(offset, count, key_of(expression))
    return queue.possible(offset, known, count, key_of(expression)) if known else None


def read_all(talk, group, offset=0):
    seen = []
    while (reply := talk.ask(pull_header(T, group=group, expression=None, offset=offset))).code in (0, 20):
        seen += [int(message.body) for message in decode_records(reply.body)]
        offset = reply.header(PullMessageReply).next_begin_offset
    return seen


@pytest.mark.mission("001-13")
def test_what_the_filter_excludes_is_evaluated_once_for_all_readers_of_an_expression(make_talk, evaluated):
    talk = make_talk(filter_bitmap=True)
    subscribe(talk, by_sql("a = 7"), group="G")
    subscribe(talk, by_sql("a = 7"), group="H", peer=2)
    send(talk, *range(100))
    assert evaluated == {}, "no sender waits for an evaluation"

    for _ in range(3):
        assert read_all(talk, "G") == read_all(talk, "H") == [7]

    assert 100 + 5 <= evaluated["a = 7"] < 100 + 5 + 25  # the match, and a maybe now and then


@pytest.mark.mission("001-13")
def test_a_reader_goes_on_where_another_ended(make_talk, evaluated):
    talk = make_talk(filter_bitmap=True)
    subscribe(talk, by_sql("a = 7"), group="G")
    send(talk, 1, 7, 2)
    assert read_all(talk, "G") == [7]
    send(talk, 3, 7)
    assert read_all(talk, "G") == [7, 7]
    assert evaluated["a = 7"] == 3 + 1 + 2


def test_without_the_setting_each_reader_evaluates(talk, evaluated):
    subscribe(talk, by_sql("a = 7"))
    send(talk, *range(100))
    assert read_all(talk, "G") == read_all(talk, "G") == [7]
    assert evaluated["a = 7"] == 200


def condition(random):
    name = random.choice(["a", "b"])
    return random.choice([
        f"{name} > {random.randrange(9)}", f"{name} = {random.randrange(9)}", f"{name} IS NULL", f"{name} IN ('1', '4', 'x')",
        f"NOT ({name} = '{random.randrange(9)}')", f"{name} BETWEEN 2 AND {random.randrange(2, 9)}", f"{name} <> 'x'",
    ])  # fmt: skip


@pytest.mark.mission("001-14")
@pytest.mark.parametrize("seed", range(12))
def test_with_the_filter_and_without_the_same_comes(make_talk, seed):
    """Expressions change, readers begin anywhere, and small filters are full soon, and are wrong often."""
    results, excluded = [], 0
    for on in (True, False):
        random, talk = Random(seed), make_talk(filter_bitmap=on)
        matches = Matches([16, 64, 8192][seed % 3], [150, 13_000][seed % 2]) if on else None
        talk.broker.pulls.filters.matches = matches
        groups, seen = [f"G{number}" for number in range(3)], []
        for turn in range(25):
            group = groups[turn] if turn < 3 else random.choice(groups)
            words = [condition(random) for _ in range(random.randrange(1, 4))]
            expression = random.choice([" AND ", " OR "]).join(words)
            if turn < 3 or random.random() < 0.3:
                subscribe(talk, by_sql(expression, version=turn + 1), group=group, peer=1 + groups.index(group))
            for _ in range(random.randrange(12)):
                text = "".join(f"{name}\x01{random.choice('012345678x')}\x02" for name in "ab" if random.random() < 0.8)
                talk.post(send_header(T, properties=text), b"%d" % turn, peer=9)
            talk.turn()
            reader = random.choice(groups)
            for offset in (random.randrange(turn * 3 + 1), 0):
                reply = talk.ask(pull_header(T, group=reader, expression=None, offset=offset))
                seen.append((reply.code, reply.body, reply.fields))
            if matches is not None:
                known = [info.subscriptions[T].expression for info in talk.broker.clients.consumers.values()]
                possible = [possible_of(matches.of(T, 0), at, 300, expression) for expression in known for at in range(0, 60, 3)]
                excluded += sum(each is not None and len(each) < 300 for each in possible)
        results.append(seen)
    assert results[0] == results[1]
    assert excluded > 0


@pytest.mark.mission("001-14")
def test_what_one_expression_excludes_another_does_not(make_talk):
    talk = make_talk(filter_bitmap=True)
    send(talk, 1, 7)
    subscribe(talk, by_sql("a = 1"))
    assert read_all(talk, "G") == [1]
    subscribe(talk, by_sql("a = 7", version=2))
    assert read_all(talk, "G") == [7]
    send(talk, 1, 7)
    assert read_all(talk, "G") == [7, 7]
    assert bodies(talk.ask(sql_header("a = 1"))) == [b"1"] * 2  # brought by the pull, while the group's is another


def test_a_topic_that_begins_anew_has_an_empty_filter(make_talk):
    talk = make_talk(filter_bitmap=True)
    talk.broker.pulls.filters.matches.of("Again", 0).note(0, 3, key_of("a = 7"), [])
    send(talk, 1, topic="Again")
    talk.ask(DeleteTopicInBroker(topic="Again"))
    assert possible_of(talk.broker.pulls.filters.matches.of("Again", 0), 0, 3, "a = 7") is None


@pytest.mark.mission("001-14")
def test_matches_are_never_excluded_and_few_others_are_not():
    queue, random = QueueMatches(), Random(1)
    matching = sorted(random.sample(range(50_000), ENTRIES_MAX - 1))
    for begin in range(0, 50_000, 100):
        queue.note(begin, 100, key_of("a = 7"), [at - begin for at in matching if begin <= at < begin + 100])
    possible = possible_of(queue, 0, 50_000, "a = 7")

    assert set(matching) <= set(possible)
    assert len(possible) - len(matching) < 0.15 * (50_000 - len(matching))
    assert possible_of(queue, 49_990, 20, "a = 7")[-10:] == list(range(10, 20)), "nothing is known of what was not evaluated"
    assert possible_of(queue, 0, 9, "another") is possible_of(queue, 50_000, 9, "a = 7") is None


def test_a_gap_between_readers_is_not_taken_as_evaluated():
    queue = QueueMatches()
    queue.note(0, 10, key_of("a"), [])
    queue.note(20, 10, key_of("a"), [])
    assert possible_of(queue, 0, 10, "a") is possible_of(queue, 15, 10, "a") is None
    assert possible_of(queue, 20, 10, "a") == []
    queue.note(5, 100, key_of("a"), [])
    assert possible_of(queue, 20, 100, "a") == list(range(10, 100)), "a reader that begins before the known part leaves it as it is"


def test_filters_are_bounded():
    matches = Matches()
    for number in range(QUEUES_MAX + 5):
        matches.of("T", number).note(0, 1, key_of("a"), [0])
    assert possible_of(matches.of("T", QUEUES_MAX), 0, 1, "a") is not None
    assert possible_of(matches.of("T", 4), 0, 1, "a") is None

    queue = matches.of("T", 9)
    for number in range(EXPRESSIONS_MAX + 5):
        queue.note(0, 1, key_of(f"a = {number}"), [0])
    assert possible_of(queue, 0, 1, "a = 0") is None
    queue.note(0, ENTRIES_MAX, key_of("all"), list(range(ENTRIES_MAX)))
    queue.note(0, 1, key_of("next"), [0])
    assert possible_of(queue, 0, 1, "all") is None


def test_lookups_are_paid_from_the_budget_of_a_turn(make_talk):
    talk = make_talk(filter_bitmap=True)
    subscribe(talk, by_sql("a = 7"), group="G")
    send(talk, *[1] * 2_000)
    assert read_all(talk, "G") == []
    budget = talk.broker.pulls.filters.budget

    talk.turn()
    before = budget.left
    talk.ask(pull_header(T, group="G", expression=None, offset=0))

    assert before - budget.left >= 2_000 * 5 or budget.left <= 0
