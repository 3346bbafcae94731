"""A topic that was deleted and made again: offsets of the old one are taken from nobody, whether its client knows births or not."""

import logging

import msgspec
import pytest

from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply, QueryConsumerOffset, TopicBirth, UpdateConsumerOffset
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker, GetTopicStatsInfo, UpdateAndCreateTopic
from tests.broker.talk import START_MS, pull_header

T = "orders"
MADE = UpdateAndCreateTopic(
    topic=T, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG", order=False
)


def filled(talk, count):
    for number in range(count):
        talk.send(T, b"%d" % number)


def recreate(talk, count, *, after_ms=1000):
    """Delete the topic and make it again, by another connection, with so many messages."""
    assert talk.ask(DeleteTopicInBroker(topic=T), peer=99).code == 0
    talk.wait(after_ms)
    assert talk.ask(MADE, peer=99).code == 0
    filled(talk, count)


def pull(talk, offset, *, birth_ms=None, commit=None, peer=1, group="G", **kw):
    header = msgspec.structs.replace(pull_header(T, offset=offset, group=group, commit=commit), topic_birth_ms=birth_ms)
    return talk.ask(header, peer=peer, **kw)


def progress(talk, peer=150, group="G"):
    """Return what is stored of a group, asked by a connection of its own."""
    reply = talk.ask(QueryConsumerOffset(consumer_group=group, topic=T, queue_id=0, set_zero_if_not_found=False), peer=peer)
    return reply.header(OffsetReply).offset if reply.code == 0 else None


def update(talk, offset, *, birth_ms=None, peer=1, group="G"):
    request = UpdateConsumerOffset(consumer_group=group, topic=T, queue_id=0, commit_offset=offset, topic_birth_ms=birth_ms)
    return talk.ask(request, peer=peer)


# ---------------------------------------------------------------- clients that say which topic they speak of


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_who_asks_is_told_when_a_topic_was_made_and_nobody_else(talk, serialization):
    talk.ask(MADE)
    filled(talk, 1)

    asked, not_asked = (pull(talk, 0, birth_ms=birth_ms, serialization=serialization) for birth_ms in (-1, None))

    assert asked.header(PullMessageReply).topic_birth_ms == START_MS
    assert "topicBirthMs" not in not_asked.fields


@pytest.mark.parametrize(("group", "code"), [("G", 0), ("New", 22)])
def test_the_birth_of_a_topic_comes_with_the_offset_also_where_there_is_none(talk, group, code):
    talk.ask(MADE)
    filled(talk, 3)
    update(talk, 2)

    reply = talk.ask(
        QueryConsumerOffset(consumer_group=group, topic=T, queue_id=0, set_zero_if_not_found=False, topic_birth_ms=-1), peer=1
    )

    assert (reply.code, reply.header(TopicBirth).topic_birth_ms) == (code, START_MS)


def test_a_pull_that_speaks_of_the_topic_before_is_refused_with_both_births_and_commits_nothing(talk):
    talk.ask(MADE)
    filled(talk, 3)
    recreate(talk, 5)

    reply = pull(talk, 3, birth_ms=START_MS, commit=3)

    assert (reply.code, progress(talk)) == (31017, None)
    assert f"topic {T} was deleted and made again" in reply.remark
    assert str(START_MS) in reply.remark
    assert str(START_MS + 1000) in reply.remark


def test_a_commit_that_speaks_of_the_topic_before_is_refused(talk):
    talk.ask(MADE)
    filled(talk, 3)
    recreate(talk, 5)

    assert (update(talk, 3, birth_ms=START_MS).code, progress(talk)) == (31017, None)
    assert (update(talk, 2, birth_ms=START_MS + 1000).code, progress(talk)) == (0, 2)


def test_a_pull_that_waits_while_its_topic_is_deleted_is_answered_that_it_is_not_there(talk):
    talk.ask(MADE)
    header = msgspec.structs.replace(pull_header(T, wait_ms=15_000), topic_birth_ms=START_MS)
    opaque = talk.post(header, peer=1)

    talk.ask(DeleteTopicInBroker(topic=T), peer=99)

    assert talk.answer(opaque, peer=1).code == 17


def test_a_topic_that_is_made_again_in_the_same_millisecond_has_another_birth(talk):
    talk.ask(MADE)
    recreate(talk, 2, after_ms=0)

    assert pull(talk, 0, birth_ms=START_MS).code == 31017
    assert b'"topicBirthMs":%d' % (START_MS + 1) in bytes(talk.ask(GetTopicStatsInfo(topic=T), peer=1).body)


def test_a_topic_that_a_crash_left_without_its_birth_may_be_any(talk):
    talk.ask(MADE)
    filled(talk, 3)
    talk.broker.topics.get(T).birth_ms = None

    known, asked = pull(talk, 0, birth_ms=START_MS), pull(talk, 0, birth_ms=-1)

    assert (known.code, asked.header(PullMessageReply).topic_birth_ms) == (0, 0)
    recreate(talk, 5)
    assert pull(talk, 3, birth_ms=0).code == 31017


# ---------------------------------------------------------------- clients that know no births


def test_a_connection_that_is_older_than_the_topic_is_sent_to_its_begin_as_from_behind_the_end(talk, caplog):
    talk.ask(MADE, peer=1)
    filled(talk, 3)
    recreate(talk, 5)

    with caplog.at_level(logging.WARNING, "halfmoon.broker"):
        moved, again = pull(talk, 3, commit=3), pull(talk, 0)
        pull(talk, 3, group="Other")

    assert (moved.code, moved.header(PullMessageReply).next_begin_offset, progress(talk)) == (21, 0, None)
    assert (again.code, again.header(PullMessageReply).next_begin_offset) == (0, 5)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0] == (
        f"group G at 10.0.0.1:5000 uses offsets of topic {T} from before it was deleted: they are ignored, its queues start over"
    )


def test_it_commits_nothing_behind_what_it_was_told_of_the_new_topic(talk):
    talk.ask(MADE, peer=1)
    filled(talk, 9)
    recreate(talk, 12)
    before = update(talk, 9)
    pull(talk, 9)

    still_old, none = update(talk, 9), progress(talk)
    pull(talk, 0)
    talk.turn()

    assert (before.code, still_old.code, none) == (31017, 31017, None)
    assert (update(talk, 12).code, progress(talk)) == (0, 12)
    assert update(talk, 13).code == 31017


def test_who_asked_for_the_group_s_offset_or_an_end_of_the_queue_knows_the_new_topic(talk):
    talk.ask(MADE, peer=1)
    talk.connect(2)
    filled(talk, 3)
    recreate(talk, 5)
    update(talk, 2, peer=100)  # somebody who came later

    talk.ask(QueryConsumerOffset(consumer_group="G", topic=T, queue_id=0), peer=1)
    talk.ask(GetMaxOffset(topic=T, queue_id=0), peer=2)

    assert pull(talk, 2, peer=1).code == 0
    assert pull(talk, 4, peer=2).code == 0
    assert update(talk, 5, peer=2).code == 0


def test_a_connection_that_came_later_and_a_topic_that_was_not_deleted_are_not_judged(talk):
    talk.ask(MADE, peer=1)
    filled(talk, 3)
    assert pull(talk, 2, commit=2).code == 0
    recreate(talk, 5)

    assert pull(talk, 3, peer=100, commit=3).code == 0
    assert progress(talk) == 3


def test_what_was_told_of_a_topic_does_not_count_for_the_next_of_its_name(talk):
    talk.ask(MADE, peer=1)
    filled(talk, 3)
    recreate(talk, 5)
    pull(talk, 0)
    recreate(talk, 8)

    assert (pull(talk, 5).code, update(talk, 5).code) == (21, 31017)
