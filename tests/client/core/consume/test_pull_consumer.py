"""The pull consumer: whose queues are read, what a poll returns, where it goes on, and what is committed."""

from __future__ import annotations

import logging
from random import Random

import pytest

from halfmoon.client.core.consume.pull_consumer import PullConsumerCore
from halfmoon.errors import NotRunning, OffsetIllegal, UsageError
from halfmoon.model import ConsumeFrom, MessageQueue
from halfmoon.wire.bodies import HeartbeatData, from_json
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, TopicBirth, UpdateConsumerOffset
from halfmoon.wire.headers.pull import PullMessage
from tests.client import queue_of
from tests.client.messages import at, record
from tests.client.queue_of import ME, Queues, Taking, poll, started
from tests.client.scripted import Reply, Scripted

ONE, TWO = (MessageQueue("orders", "broker-a", i) for i in range(2))
FIRST = ConsumeFrom.FIRST_OFFSET


@pytest.fixture(autouse=True, params=[PullConsumerCore, Taking], ids=["asked", "taken"])
def face(request, monkeypatch):
    """Every test runs for pull consumers that are asked, and for those of which is taken what is there."""
    monkeypatch.setattr(queue_of, "POLLS", request.param)


def assigned(script, *queues, **values):
    core = poll(script, consume_from=FIRST, **values)
    script.run(core.assign(queues))
    return started(script, core)


def reading(filled, *, queue_count=1, **values):
    """A consumer that was assigned `ONE`, which holds so many messages."""
    script = Scripted()
    Queues(script, queue_count).fill(filled)
    return script, assigned(script, ONE, **values)


def member(**values):
    """The only consumer of its group: it has both queues, `TWO` with thirty messages."""
    script = Scripted()
    queues = Queues(script, 2)
    queues.fill(30, 1)
    core = poll(script, consume_from=FIRST, **values)
    core.subscribe("orders")
    return script, queues, started(script, core)


def polled(script, core, timeout_ms=100):
    return [message.queue_offset for message in script.run(core.poll(timeout_ms))]


def committed(script):
    return [seen.request.commit_offset for seen in script.told if type(seen.request) is UpdateConsumerOffset]


def test_a_poll_returns_what_one_pull_brought_in_order_and_then_nothing():
    script, core = reading(12)

    assert polled(script, core) == list(range(10))
    assert polled(script, core) == [10, 11]
    begin = script.now
    assert polled(script, core, 250) == []
    assert script.now - begin == 250


def test_a_pull_brings_more_than_one_poll_gives():
    script, core = reading(70)

    assert [len(polled(script, core)) for _ in range(8)] == [10, 10, 10, 2, 10, 10, 10, 2]
    assert [seen.request.max_msg_nums for seen in script.asked(PullMessage)[:3]] == [32, 32, 32]


@pytest.mark.parametrize("seed", range(20))
def test_steps_and_polls_confirm_what_was_given_before_them(seed):
    random = Random(seed)
    script = Scripted()
    Queues(script, 2).fill(100)
    core = assigned(script, ONE, batch_max=random.choice((1, 3, 10)), auto_commit=False)
    given, before = [], 0

    for _ in range(60):
        what = random.random()
        if what < 0.75:
            before = len(given)
            given += [message.queue_offset for message in script.run(core.poll(5, count_max=random.choice((None, 1, 2))))]
        elif what < 0.85:
            assert core.position(ONE) == len(given)
        elif what < 0.95:
            lost = script.run(core.hand_out(5, count_max=random.choice((None, 1, 2))))
            before = len(given)
            core.take_back(lost)
        else:
            core._settle()
            held = core.held[MessageQueue("orders", "broker-a", 0)]
            assert max(0, held.consumed) == (before if core._unconfirmed else len(given))
    assert given == list(range(len(given)))
    assert len(given) > 10


def test_pulls_carry_the_bits_and_the_expression_of_lite_pull():
    script = Scripted()
    Queues(script)
    core = poll(script)
    core.subscribe("orders", "A")
    started(script, core)

    pull = script.asked(PullMessage)[0].request
    assert (pull.sys_flag, pull.subscription, pull.sub_version, pull.suspend_timeout_millis) == (22, "A", 0, 20_000)
    data = from_json(HeartbeatData, script.asked(HeartBeat)[0].body).consumer_data_set[0]
    assert (data.consume_type.name, data.consume_from_where.name) == ("CONSUME_ACTIVELY", "CONSUME_FROM_LAST_OFFSET")


def test_a_waiting_poll_is_woken_by_the_first_message():
    script = Scripted()
    queues = Queues(script)
    queues.hold_ms = 500
    core = assigned(script, ONE)
    queues.fill(1)
    begin = script.now

    assert polled(script, core, 5_000) == [0]
    assert script.now - begin < 1_000


def test_subscribed_queues_are_shared_by_the_group():
    script = Scripted()
    Queues(script, 2, members=(ME, "10.0.0.9@9"))
    core = poll(script)
    core.subscribe("orders")

    started(script, core)

    assert core.assignment() == [ONE]


def test_subscribing_and_assigning_exclude_each_other():
    script = Scripted()
    Queues(script)
    one, two = poll(script), poll(script)
    one.subscribe("orders")
    script.run(two.assign([ONE]))

    with pytest.raises(UsageError, match="mutually exclusive"):
        script.run(one.assign([ONE]))
    with pytest.raises(UsageError, match="mutually exclusive"):
        two.subscribe("orders")


def test_assigning_anew_gives_up_the_other_queues():
    script = Scripted()
    Queues(script, 2)
    core = assigned(script, ONE)

    script.run(core.assign([TWO]))

    assert core.assignment() == [TWO]


def test_a_commit_tells_the_broker_what_was_handed_out_and_nothing_else():
    script, core = reading(15, auto_commit=False)

    polled(script, core)
    script.run(core.commit())
    assert committed(script) == [10]
    script.run(core.commit({ONE: 4}))

    assert committed(script) == [10, 4]
    assert script.run(core.committed(ONE)) == 4


def test_auto_commit_notes_what_was_polled_before():
    script, core = reading(15)

    polled(script, core)
    script.run_for(5_100)
    polled(script, core)
    script.run_for(5_100)

    assert committed(script)[-1] == 10
    script.run(core.stop())
    assert committed(script)[-1] == 10


def stepped(script, core):
    """Take one step of the iteration."""
    [message] = script.run(core.poll(100, count_max=1))
    return message.queue_offset


def test_a_close_commits_what_was_confirmed_and_nothing_of_what_was_only_fetched_or_only_given():
    script, core = reading(10)

    assert [stepped(script, core) for _ in range(3)] == [0, 1, 2]
    script.run(core.stop())

    assert committed(script) == [2]


def test_a_message_that_its_application_was_given_alone_commits_nothing():
    script, core = reading(10)

    assert stepped(script, core) == 0
    script.run_for(11_000)
    script.run(core.stop())

    assert committed(script) == []


def test_a_poll_that_finds_nothing_confirms_what_was_given_before():
    script, core = reading(3)

    assert polled(script, core) == [0, 1, 2]
    assert polled(script, core) == []
    script.run(core.stop())

    assert committed(script)[-1] == 3


def test_a_commit_within_the_work_on_a_message_confirms_that_message_and_not_those_fetched_with_it():
    script, core = reading(10, auto_commit=False)

    assert [stepped(script, core) for _ in range(3)] == [0, 1, 2]
    script.run(core.commit())
    script.run(core.stop())

    assert set(committed(script)) == {3}


def test_steps_and_polls_share_what_was_fetched():
    script, core = reading(12)

    assert stepped(script, core) == 0
    assert core.position(ONE) == 1
    assert polled(script, core) == list(range(1, 10))
    assert [stepped(script, core), stepped(script, core)] == [10, 11]
    script.run(core.stop())
    assert committed(script)[-1] == 11


def test_a_queue_that_is_taken_away_is_committed_up_to_what_was_confirmed_however_long_the_application_works_on_the_rest():
    script, queues, core = member()

    assert [len(polled(script, core)), len(polled(script, core))] == [10, 10]
    queues.members = (ME, "10.0.0.9@9")
    core.group_changed()
    script.run_for(6_000)

    assert core.assignment() == [ONE]
    assert set(committed(script)) == {10}
    polled(script, core)  # confirms what was given of a queue that is another's now
    script.run(core.commit())
    script.run(core.stop())
    assert set(committed(script)) == {10}


def test_a_queue_that_comes_back_begins_at_what_was_committed_and_a_commit_counts_for_what_was_given_since():
    script, queues, core = member()
    assert [len(polled(script, core)), len(polled(script, core))] == [10, 10]
    queues.members = (ME, "10.0.0.9@9")
    core.group_changed()
    script.run_for(1_000)
    queues.members, queues.committed["orders", 1] = (ME,), 10
    core.group_changed()
    script.run_for(1_000)

    script.run(core.commit())
    assert set(committed(script)) == {10}
    assert polled(script, core) == list(range(10, 20))
    script.run(core.commit())
    assert committed(script)[-1] == 20


def test_without_auto_commit_a_queue_that_is_taken_away_is_committed_as_commit_said():
    script, queues, core = member(auto_commit=False)
    polled(script, core)
    script.run(core.commit(persist=False))
    polled(script, core)
    polled(script, core)

    queues.members = (ME, "10.0.0.9@9")
    core.group_changed()
    script.run_for(1_000)

    assert core.assignment() == [ONE]
    assert set(committed(script)) == {10}


def test_seeking_while_a_message_is_worked_on_forgets_those_fetched_with_it():
    script, core = reading(30)
    assert [stepped(script, core), stepped(script, core)] == [0, 1]

    script.run(core.seek(ONE, 25))

    assert stepped(script, core) == 25
    script.run(core.stop())
    assert committed(script)[-1] == 25


def test_seeking_back_commits_no_more_than_was_given_since():
    script, core = reading(30)
    assert [len(polled(script, core)), len(polled(script, core))] == [10, 10]

    script.run(core.seek(ONE, 5))
    assert polled(script, core) == list(range(5, 15))
    script.run(core.stop())

    assert committed(script)[-1] == 5


def test_seeking_makes_room_at_once_for_what_comes_after():
    script, core = reading(200, queue_count=2, cached_total_max=30)
    script.run_for(2_000)

    script.run(core.seek(ONE, 100))

    assert (core._cached, len(core._ready)) == (0, 0)


def test_a_reset_by_an_operator_is_not_undone_by_what_was_handed_out_before():
    script, core = reading(30, auto_commit_ms=1)
    polled(script, core)
    polled(script, core)

    script.run(core.reset("orders", {ONE: 3}))
    assert polled(script, core) == list(range(3, 13))
    script.run(core.stop())

    assert committed(script)[-1] == 3


def test_what_a_filter_left_out_behind_a_message_is_confirmed_with_it_and_not_before():
    script = Scripted()
    queues = Queues(script)
    queues.fill(1, tag="A")
    queues.fill(9, tag="B")
    core = poll(script, consume_from=FIRST, batch_max=1)
    core.subscribe("orders", "A")
    started(script, core)

    assert polled(script, core) == [0]
    script.run_for(3_000)
    assert core.position(ONE) == 10
    script.run_for(5_100)
    assert committed(script) == []
    assert polled(script, core) == []
    script.run(core.stop())
    assert committed(script)[-1] == 10


def test_committed_asks_the_broker_when_nothing_is_known():
    script = Scripted()
    queues = Queues(script, 2)
    queues.committed["orders", 1] = 7
    core = assigned(script, ONE)

    assert [script.run(core.committed(queue)) for queue in (ONE, TWO)] == [-1, 7]


def test_seeking_goes_on_at_the_offset_and_forgets_what_was_pulled_ahead():
    script, core = reading(30)
    polled(script, core)

    script.run(core.seek(ONE, 25))
    assert polled(script, core) == [25, 26, 27, 28, 29]
    script.run(core.seek_to_begin(ONE))
    assert polled(script, core)[:2] == [0, 1]
    script.run(core.seek_to_end(ONE))
    assert polled(script, core) == []


def test_seeking_beyond_the_queue_or_in_a_queue_of_others_is_refused():
    script, core = reading(3, queue_count=2)

    with pytest.raises(OffsetIllegal, match="Seek offset illegal, seek offset = 4, min offset = 0, max offset = 3"):
        script.run(core.seek(ONE, 4))
    with pytest.raises(UsageError, match="not in assigned list"):
        script.run(core.seek(TWO, 0))


def test_a_paused_queue_is_neither_pulled_nor_handed_out():
    script = Scripted()
    queues = Queues(script, 2)
    queues.fill(5, 0)
    queues.fill(2, 1)
    core = assigned(script, ONE, TWO)

    core.pause([ONE])
    assert polled(script, core) == [0, 1]
    assert polled(script, core) == []
    core.resume([ONE])

    assert polled(script, core) == [0, 1, 2, 3, 4]


def test_too_much_in_memory_pauses_the_pulls():
    script, core = reading(200, cached_total_max=90)
    script.run_for(5_000)

    assert len(script.asked(PullMessage)) == 3
    got = [offset for _ in range(25) for offset in polled(script, core)]
    assert got == list(range(200))
    assert len(script.asked(PullMessage)) == 8


@pytest.mark.parametrize("bound", ["cached_max", "cached_total_max"])
def test_no_more_is_pulled_ahead_than_may_be_in_memory_and_one_poll(bound):
    script, core = reading(200, batch_max=2, **{bound: 4})
    script.run_for(5_000)

    assert core._cached <= 4 + 4
    assert [offset for _ in range(100) for offset in polled(script, core)] == list(range(200))


def test_an_illegal_offset_goes_on_where_the_broker_says():
    script = Scripted()
    queues = Queues(script)
    queues.committed["orders", 0] = 50
    queues.fill(2)
    core = assigned(script, ONE)
    queues.fill(1)

    script.run_for(21_000)

    assert polled(script, core) == [2]


def test_an_offset_for_a_time_is_the_brokers_answer():
    script = Scripted()
    Queues(script)
    core = assigned(script, ONE)

    assert script.run(core.offset_for_timestamp(ONE, 123)) == 2


def test_it_refuses_to_work_before_the_start():
    script = Scripted()
    core = poll(script)

    for operation in (core.poll(), core.commit(), core.seek(ONE, 0), core.committed(ONE)):
        with pytest.raises(NotRunning):
            script.run(operation)


@pytest.mark.parametrize("fault", [at(record(3), 4, b"junk"), at(record(3), 0, b"junk"), b"\0" * 200])
@pytest.mark.parametrize("place", [0, 3, 9])
def test_a_record_that_does_not_decode_is_left_behind_and_counted(fault, place):
    script = Scripted()
    queues = Queues(script)
    queues.fill(10)
    queues.records["orders", 0][place] = fault
    core = assigned(script, ONE)

    got = [offset for _ in range(4) for offset in polled(script, core, 5_000)]

    assert got == [k for k in range(10) if k != place]
    assert (core.held[ONE].next_offset, core.skipped_count) == (10, 1)
    script.run(core.commit())
    assert committed(script)[-1] == 10
    assert len(script.asked(PullMessage)) < 12


def test_an_offset_that_is_sought_is_one_of_the_topic_that_is_there_now():
    script = Scripted()
    Queues(script).fill(5)
    births = iter([1000, 2000])
    script.on(QueryConsumerOffset, lambda seen: Reply(header=OffsetReply(offset=0, topic_birth_ms=next(births))))
    core = assigned(script, ONE)
    polled(script, core)
    assert script.asked(PullMessage)[-1].request.topic_birth_ms == 1000

    script.run(core.seek(ONE, 3))
    script.run_for(100)

    assert script.asked(PullMessage)[-1].request.topic_birth_ms == 2000
    assert polled(script, core) == [3, 4]


def test_a_recreated_topic_is_begun_as_the_settings_say_and_that_is_said_once(caplog):
    script = Scripted()
    queues = Queues(script, queue_count=2)
    queues.fill(5)
    queues.fill(5, queue_id=1)
    script.on(QueryConsumerOffset, lambda seen: Reply(22, TopicBirth(topic_birth_ms=born)))
    born = 1000
    core = poll(script, consume_from=FIRST)
    core.subscribe("orders")
    started(script, core)
    given = [polled(script, core) for _ in range(3)]
    born = 2000
    answer = script._answers[PullMessage]
    refused = Reply(31017, remark="topic orders was deleted and made again")
    script.on(PullMessage, lambda seen: refused if seen.request.topic_birth_ms == 1000 else answer(seen))

    with caplog.at_level(logging.WARNING, "halfmoon.client"):
        script.run_for(60_000)
        again = [polled(script, core) for _ in range(3)]

    assert sorted(given) == sorted(again) == [[], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("topic orders was deleted and made again at broker broker-a: group C begins its queues there anew")


def test_a_poll_of_nothing_and_a_time_that_is_none_are_refused():
    script = Scripted()
    Queues(script, 1)
    core = poll(script)
    script.run(core.start())
    with pytest.raises(UsageError, match=r"nothing is subscribed: call subscribe\(topic\) or assign\(queues\) before poll"):
        polled(script, core)
    core.subscribe("orders")
    with pytest.raises(UsageError, match=r"timeout_ms is '1' \(str\): give a whole number"):
        polled(script, core, "1")
