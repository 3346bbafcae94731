"""Filters by properties through the broker: what comes, what is refused, what waits, and that nobody else has to."""

import random

import pytest

from halfmoon import sql92
from halfmoon.broker.pull.filters import Budget, RetryTest, SqlTest
from halfmoon.hot import NATIVE, Messages
from halfmoon.model import ConsumeType, MessageModel, Subscription, subscription
from halfmoon.wire.bodies import CheckClientBody, ConsumeFromWhere, ConsumerData, HeartbeatData, SubscriptionData, to_json
from halfmoon.wire.headers.client import CheckClientConfig, HeartBeat
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.record import decode_records
from tests.broker.talk import pull_header, send_header

T = "BenchmarkTest"
LEFT = "(a = 1000) = TRUE"
"""An expression that no bulk filter decides: the predicates test each message, with the twin too."""
BAD = ["", " ", "a >", "a > 'x'", "a = null", "a LIKE 'x%'", "a is true", "'open", "(((a = 1)", "a = 1 b = 2"]


def sql_header(expression, **kw):
    header = pull_header(T, expression=expression, **kw)
    header.expression_type = "SQL92"
    return header


def subscribe(talk, *wanted, group="G", peer=1):
    """Send a heartbeat with these subscriptions."""
    data = HeartbeatData(
        client_id=f"client-{peer}",
        consumer_data_set=[
            ConsumerData(
                group, ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                [SubscriptionData.of(each) if isinstance(each, Subscription) else each for each in wanted],
            )
        ],
    )  # fmt: skip
    return talk.ask(HeartBeat(), to_json(data), peer=peer)


def by_sql(expression, topic=T, version=1):
    return Subscription(topic, expression, "SQL92", version=version)


def filled(talk, count=10, peer=1):
    for number in range(count):
        talk.post(send_header(T, properties=f"a\x01{number}\x02b\x01{'xy'[number % 2]}\x02"), b"%d" % number, peer=peer)
    talk.turn()
    return talk


def bodies(reply):
    assert reply.code == 0, reply.remark
    return [message.body for message in decode_records(reply.body)]


def selected(test, blocks):
    """Return which of messages with these properties a test selects until it has enough, and how many it has looked at."""
    drafts = [(b"", block, 0, 0, 1, bytes(8), 0, 0, 0) for block in blocks]
    records, entries = Messages(drafts).encode("T", 0, 0, 0, 1 << 40, 1 << 30, 1, bytes(8))
    found, looked, enough = [], 0, False
    while looked < len(blocks) and not enough:
        more, count, enough = test.select(memoryview(records), 0, entries[looked * 20 :], len(blocks))
        found += [looked + index for index in more]
        looked += count
    return found, looked


# ---------------------------------------------------------------- what comes


@pytest.mark.mission("001-11", "001-12")
def test_a_pull_with_an_expression_gets_the_messages_whose_properties_match(talk):
    reply = filled(talk).ask(sql_header("a > 3 AND b = 'x'"))

    assert bodies(reply) == [b"4", b"6", b"8"]
    assert reply.header(PullMessageReply).next_begin_offset == 10


@pytest.mark.mission("001-11")
def test_a_pull_without_an_expression_is_filtered_as_the_heartbeat_said(talk):
    filled(talk)
    subscribe(talk, by_sql("a BETWEEN 2 AND 4"))

    assert bodies(talk.ask(pull_header(T, expression=None))) == [b"2", b"3", b"4"]


def test_when_nothing_matches_the_reader_is_moved_on(talk):
    reply = filled(talk).ask(sql_header("a > 100"))

    assert (reply.code, reply.header(PullMessageReply).next_begin_offset) == (20, 10)


def test_a_message_that_the_expression_cannot_evaluate_is_left_out_and_the_others_come(talk):
    for value in ("7", "seven", "8"):
        talk.send(T, value.encode(), properties=f"a\x01{value}\x02")

    assert bodies(talk.ask(sql_header("a > 5"))) == [b"7", b"8"]


def test_a_newer_subscription_replaces_the_filter_and_an_older_pull_still_reads_with_it(talk):
    filled(talk)
    subscribe(talk, by_sql("a < 2", version=5))
    assert bodies(talk.ask(pull_header(T, expression=None, version=5))) == [b"0", b"1"]
    assert talk.ask(pull_header(T, expression=None, version=6)).code == 25

    subscribe(talk, by_sql("a > 7", version=6))
    assert bodies(talk.ask(pull_header(T, expression=None, version=6))) == [b"8", b"9"]
    assert bodies(talk.ask(pull_header(T, expression=None, version=5))) == [b"8", b"9"]

    subscribe(talk, subscription(T, "*", version=7))
    assert len(bodies(talk.ask(pull_header(T, expression=None, version=7)))) == 10


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize("expression", BAD)
def test_an_expression_that_does_not_parse_is_refused_to_pulls_of_either_kind(talk, expression):
    filled(talk)
    subscribe(talk, by_sql(expression))
    carried, known = talk.ask(sql_header(expression)), talk.ask(pull_header(T, expression=None, version=1))
    check = to_json(CheckClientBody("c", "G", SubscriptionData.of(by_sql(expression))))

    assert (carried.code, known.code, talk.ask(CheckClientConfig(), check).code) == (23, 23, 23)
    assert carried.body == known.body == b""
    assert carried.remark.startswith("SQL92 filter, at "), "the place comes first, and nothing says twice that it is refused"


def test_without_a_heartbeat_a_pull_that_brings_no_expression_is_refused(talk):
    filled(talk)
    assert talk.ask(pull_header(T, expression=None)).code == 24


def test_switched_off_it_is_refused_as_the_original_does(make_talk):
    talk = make_talk(property_filter=False)
    filled(talk)
    subscribe(talk, by_sql("a > 5"))

    for header in (sql_header("a > 5"), pull_header(T, expression=None)):
        reply = talk.ask(header)
        assert (reply.code, reply.remark) == (1, "The broker does not support consumer to filter message by SQL92")


def test_filters_by_a_class_are_refused_with_a_reason(talk):
    filled(talk)
    header = pull_header(T, expression="org.example.Filter")
    header.sys_flag |= 8

    by_class = SubscriptionData(T, "org.example.Filter", class_filter_mode=True)
    subscribe(talk, by_class)

    check = to_json(CheckClientBody("c", "G", by_class))
    replies = [talk.ask(header), talk.ask(pull_header(T, expression=None)), talk.ask(CheckClientConfig(), check)]

    assert [reply.code for reply in replies] == [1, 1, 1]
    assert all("by tags or by SQL92" in reply.remark for reply in replies)
    assert SubscriptionData.of(by_class.subscription()).class_filter_mode


def test_a_heartbeat_with_an_endless_expression_is_refused_and_nothing_of_it_is_kept(talk):
    reply = subscribe(talk, by_sql("a = '" + "x" * 1_000_000))

    assert reply.code == 23
    assert talk.broker.clients.group("G") is None


# ---------------------------------------------------------------- waiting


def test_a_pull_that_waits_with_an_expression_wakes_for_what_matches_only(talk):
    filled(talk)
    opaque = talk.post(sql_header("b = 'z'", offset=10, wait_ms=15_000))
    talk.turn()
    talk.send(T, b"no", peer=2, properties="b\x01x\x02")
    assert talk.answer(opaque) is None

    talk.send(T, b"yes", peer=2, properties="b\x01z\x02")

    assert bodies(talk.answer(opaque)) == [b"yes"]


def test_a_pull_that_waits_looks_at_each_new_message_once(talk, monkeypatch):
    looked = []
    select = SqlTest.select

    def noting(*given):
        found = select(*given)
        looked.append(found[1])
        return found

    monkeypatch.setattr(SqlTest, "select", noting)
    filled(talk)
    opaque = talk.post(sql_header("b = 'z'", offset=10, wait_ms=5_000))
    talk.turn()
    for _ in range(6):
        talk.send(T, b"no", peer=2, properties="b\x01x\x02")
    talk.wait(5_000)

    reply = talk.answer(opaque)

    assert looked == [1] * 6
    assert (reply.code, reply.header(PullMessageReply).next_begin_offset) == (20, 16)


def test_a_pull_that_waited_in_vain_is_answered_exactly_at_its_time(talk):
    filled(talk)
    opaque = talk.post(sql_header("b = 'z'", offset=10, wait_ms=2_000))
    talk.turn()
    talk.send(T, b"no", peer=2, properties="b\x01x\x02")
    talk.wait(1_999)
    assert talk.answer(opaque) is None
    talk.wait(1)
    assert talk.answer(opaque).code == 20


def test_a_broker_that_stops_answers_a_pull_that_waits_with_an_expression(talk):
    filled(talk)
    opaque = talk.post(sql_header("b = 'z'", offset=10, wait_ms=2_000))
    talk.turn()
    talk.broker.stop(talk.instant)
    talk.run_effects()
    assert talk.answer(opaque).code == 19


# ---------------------------------------------------------------- turns


def test_a_pull_tests_no_more_than_a_turn_allows_and_goes_on_where_it_stopped(talk):
    talk.broker.pulls.filters.steps_of_turn = 100
    filled(talk, 100)
    talk.broker.pulls.filters.compiled(LEFT)  # that it is read costs a turn of its own
    offset, answers = 0, 0
    while offset < 100:
        reply = talk.ask(sql_header(LEFT, offset=offset))
        assert reply.code == 20
        assert reply.header(PullMessageReply).next_begin_offset > offset
        offset, answers = reply.header(PullMessageReply).next_begin_offset, answers + 1
    assert 3 < answers < 60


def test_pulls_for_which_a_turn_has_no_time_left_get_theirs_in_the_next(talk):
    talk.broker.pulls.filters.steps_of_turn = 300
    filled(talk, 100)
    talk.broker.pulls.filters.compiled(LEFT)
    posts = [talk.post(sql_header(LEFT), peer=peer) for peer in (1, 2, 3)]
    talk.turn()
    first = [talk.answer(opaque, peer=peer) is not None for peer, opaque in enumerate(posts, 1)]
    assert first == [True, False, False]
    assert talk.broker.due(talk.instant) <= talk.instant.steady

    for _ in range(2):
        talk.wait(0)
        talk.broker.tick(talk.instant)
        talk.run_effects()

    assert [talk.answer(opaque, peer=peer).code for peer, opaque in enumerate(posts[1:], 2)] == [20, 20]
    assert talk.broker.holds.count == 0


def test_a_tick_looks_at_some_of_many_pulls_only_and_all_are_answered(talk):
    talk.broker.pulls.filters.steps_of_turn, talk.broker.pulls.expired_a_tick = 20_000, 5
    filled(talk, 100)
    posts = [talk.post(sql_header(LEFT), peer=peer) for peer in range(1, 41)]
    talk.turn()
    served = []
    for _ in range(40):
        before = sum(map(len, talk.received.values()))
        talk.broker.tick(talk.instant)
        talk.run_effects()
        served.append(sum(map(len, talk.received.values())) - before)

    assert max(served) == 5
    assert [talk.answer(opaque, peer=peer).code for peer, opaque in enumerate(posts, 1)] == [20] * 40


def test_ordinary_pulls_do_not_wait_for_those_with_expressions(talk):
    talk.broker.pulls.filters.steps_of_turn = 300
    filled(talk, 100)
    for peer in (1, 2, 3):
        talk.post(sql_header(LEFT), peer=peer)
    opaque = talk.post(pull_header(T, expression="*"), peer=4)
    talk.turn()
    assert talk.answer(opaque, peer=4).code == 0


def test_the_cost_of_a_test_grows_with_the_expression_and_with_the_properties():
    def looked(expression, block):
        budget = Budget()
        budget.left = 2_000
        return selected(SqlTest(sql92.compile(expression), budget), [block] * 10_000)[1]

    short, long = b"a\x011\x02", b"x\x01" + b"y" * 10_000 + b"\x02a\x011\x02"
    wide = " OR ".join(f"a = {number}" for number in range(200))
    assert looked("a = 1", short) > 5 * looked("a = 1", long)
    assert looked("a = 1", short) > 20 * looked(wide, short)
    if NATIVE is not None:  # which decides about these by itself
        assert looked("b = 'z'", short) > 1.5 * looked("(b = 'z') = TRUE", short)


@pytest.mark.parametrize("condition", ["a NOT CONTAINS 'abab{}'", "a < -{}.5"])
def test_long_values_that_are_read_again_and_again_use_up_a_turn(condition):
    several, once = (" OR ".join(condition.format(number) for number in range(1, count)) for count in (129, 2))
    long, short = b"a\x01" + b"1" * 30_000 + b"\x02", b"a\x011\x02"
    for make in (lambda each, budget: SqlTest(each, budget), lambda each, budget: RetryTest({b"T": each}, budget)):
        extra = b"RETRY_TOPIC\x01T\x02"
        assert selected(make(sql92.compile(several), Budget()), [long + extra] * 100)[1] == 1
        assert selected(make(sql92.compile(several), Budget()), [short + extra] * 100)[1] > 10
        assert selected(make(sql92.compile(once), Budget()), [long + extra] * 100)[1] > 2


def test_one_message_at_least_is_tested_whatever_it_costs():
    budget = Budget()
    budget.left = -5
    assert selected(SqlTest(sql92.compile("a = 1"), budget), [b"a\x011\x02"] * 3) == ([0], 1)


def test_expressions_are_compiled_once_and_not_without_end(talk):
    filters = talk.broker.pulls.filters
    first = filters.compiled("a = 1")
    assert filters.compiled("a = 1") is first
    for number in range(1_000):
        filters.compiled(f"b = {number}")
    assert filters.compiled("a = 1") is not first


# ---------------------------------------------------------------- what comes again


def retried(talk):
    subscribe(talk, by_sql("a > 5"), subscription("Other", "*", version=1), subscription("%RETRY%G", "*", version=1))
    for number, origin in enumerate([T, T, "Other", T]):
        talk.send("%RETRY%G", b"%d" % number, properties=f"a\x01{number * 3}\x02RETRY_TOPIC\x01{origin}\x02")
    return bodies(talk.ask(pull_header("%RETRY%G", expression=None, version=1)))


def test_what_comes_again_is_not_filtered(talk):
    assert retried(talk) == [b"0", b"1", b"2", b"3"]


def test_what_comes_again_is_filtered_by_its_first_topic_where_that_is_switched_on(make_talk):
    assert retried(make_talk(filter_support_retry=True)) == [b"2", b"3"]


def test_the_test_of_a_retry_topic_keeps_to_the_budget():
    budget = Budget()
    budget.left = 50
    test = RetryTest({b"T": sql92.compile("a > 5")}, budget)
    found, looked = selected(test, [b"a\x017\x02RETRY_TOPIC\x01T\x02"] * 1000)
    assert found == list(range(looked))
    assert 1 <= looked < 20


# ---------------------------------------------------------------- random expressions, against one message at a time


def test_what_comes_is_what_the_expression_says_of_each_message(talk):
    draw = random.Random(5)
    wanted = [{"a": str(draw.randrange(9)), "b": draw.choice("xyz"), "c": "k" * draw.randrange(1, 30)} for _ in range(300)]
    for number, properties in enumerate(wanted):
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if draw.random() < 0.8)
        properties["text"] = text
        talk.post(send_header(T, properties=text), b"%d" % number)
    talk.turn()
    for expression in ("a > 4 OR b = 'z'", "NOT (a = 3)", "c IS NULL", "b IN ('x', 'z') AND a <> 2", "a BETWEEN 2 AND 5"):
        compiled = sql92.compile(expression)
        # what the broker stores has more properties of its own behind these
        expected = [b"%d" % number for number, each in enumerate(wanted) if compiled.matches(each["text"].encode())]
        seen, offset = [], 0
        while (reply := talk.ask(sql_header(expression, offset=offset))).code in (0, 20):
            seen += bodies(reply) if reply.code == 0 else []
            offset = reply.header(PullMessageReply).next_begin_offset
        assert seen == expected
        assert 0 < len(seen) < 300


def test_a_filter_with_a_condition_that_no_message_changes_is_logged_once(talk, caplog):
    for version in (1, 2):
        subscribe(talk, by_sql("'TAGS' = 'a'", version=version))
        talk.ask(sql_header("'TAGS' = 'a'"))
    subscribe(talk, by_sql("TAGS = 'a'", version=3))

    (said,) = [text for record in caplog.records if "filter" in (text := record.getMessage())]
    assert "'TAGS' = 'a' reads no property and is always false" in said
