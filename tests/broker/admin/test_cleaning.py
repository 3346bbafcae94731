"""What an operator has removed before its time, and what stays whatever is asked."""

from __future__ import annotations

import os

import pytest

from halfmoon.wire.headers.admin import CleanExpiredConsumequeue, CleanUnusedTopic, DeleteExpiredCommitlog
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from tests.broker.talk import START_MS

T = "orders"
STORE = {"delete_when": "12", "file_reserved_hours": 1}  # at START_MS it is 22:13 UTC


def names(talk, directory):
    return sorted(path.name for path in (talk.root / directory).iterdir())


def filled(talk, *, hours_ago):
    """Three log files, last written some hours ago."""
    for _ in range(20):
        talk.send(T, bytes(30_000))
    talk.wait(3000)
    for path in (talk.root / "commitlog").iterdir():
        os.utime(path, ns=(0, (START_MS - hours_ago * 3_600_000) * 1_000_000))
    return talk


# ---------------------------------------------------------------- the log


def test_expired_log_files_go_at_any_hour_when_that_is_asked_for(make_talk):
    talk = filled(make_talk(store=STORE), hours_ago=2)
    before = names(talk, "commitlog")

    assert talk.ask(DeleteExpiredCommitlog()).code == 0
    talk.wait(20_000)

    assert (len(before), names(talk, "commitlog")) == (3, before[2:])
    assert talk.pull(T).code == 21


def test_log_files_that_are_not_expired_stay(make_talk):
    talk = filled(make_talk(store=STORE), hours_ago=0)

    assert talk.ask(DeleteExpiredCommitlog()).code == 0
    talk.wait(20_000)

    assert len(names(talk, "commitlog")) == 3


def test_files_of_queues_whose_messages_are_gone_are_removed_also_after_a_kill_in_between(make_talk, monkeypatch):
    talk = filled(make_talk(store={**STORE, "queue_file_bytes": 100}), hours_ago=2)
    for _ in range(7):
        talk.send("other")
    talk.ask(DeleteExpiredCommitlog())
    maintenance = talk.broker.store.maintenance
    monkeypatch.setattr(maintenance, "_correct_queues", maintenance._to_correct.clear)  # a kill forgets what was to follow
    talk.wait(20_000)
    monkeypatch.undo()
    before = names(talk, f"consumequeue/{T}/0")

    assert talk.ask(CleanExpiredConsumequeue()).code == 0
    talk.wait(1000)

    assert (len(before), len(names(talk, f"consumequeue/{T}/0"))) == (4, 1)
    assert len(names(talk, "consumequeue/other/0")) == 2
    assert talk.broker.store.queue_max(T, 0) == 20
    assert talk.pull("other").code == 0


# ---------------------------------------------------------------- topics


@pytest.fixture
def orphaned(talk):
    """A topic with messages and progress that is not in the table."""
    talk.send(T)
    talk.send("kept")
    talk.ask(UpdateConsumerOffset(consumer_group="G", topic=T, queue_id=0, commit_offset=1))
    talk.broker.topics.delete(T, talk.now)
    talk.run_effects()
    return talk


def test_queues_of_topics_that_do_not_exist_are_removed_with_their_progress(orphaned):
    assert orphaned.ask(CleanUnusedTopic()).code == 0

    assert T not in names(orphaned, "consumequeue")
    assert orphaned.broker.offsets.queues("G", T) == {}
    orphaned.restart()
    assert orphaned.broker.topics.get(T) is None
    assert orphaned.pull("kept").code == 0


def test_a_topic_of_which_something_is_still_to_be_published_stays(orphaned):
    orphaned.broker.store.hold(T, 0)

    assert orphaned.ask(CleanUnusedTopic()).code == 0

    assert orphaned.broker.store.queue_max(T, 0) == 1


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "DefaultCluster_REPLY_TOPIC"])
def test_queues_of_system_topics_stay_also_where_the_table_has_lost_them(talk, topic):
    talk.broker.store.make_ready(topic, 0, lambda reason, now: None)
    talk.run_effects()
    talk.broker.topics._table.pop(topic)

    assert talk.ask(CleanUnusedTopic()).code == 0

    assert (topic, 0) in talk.broker.store.queues
