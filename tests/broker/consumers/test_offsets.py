"""The table of consumer offsets."""

import pytest

from halfmoon.errors import SystemBusy


def test_progress_is_kept_by_group_topic_and_queue_and_may_go_back(talk):
    offsets = talk.broker.offsets
    offsets.put("G", "T", 0, 7)
    offsets.put("G", "T", 0, 5)
    offsets.put("G", "T", 1, -1)
    assert (offsets.get("G", "T", 0), offsets.get("G", "T", 1), offsets.get("H", "T", 0)) == (5, None, None)
    assert (offsets.queues("G", "T"), offsets.topics_of("G"), offsets.groups_of("T")) == ({0: 5}, ["T"], ["G"])


def test_it_is_removed_by_topic_by_group_or_by_both(talk):
    offsets = talk.broker.offsets
    for group, topic in (("G", "T"), ("G", "U"), ("H", "T")):
        offsets.put(group, topic, 0, 1)
    offsets.remove(topic="T", group="H")
    assert offsets.topics_by_group() == {"G": ["T", "U"]}
    offsets.remove(group="G")
    assert offsets.topics_by_group() == {}


def test_after_lost_writes_progress_ends_at_the_end_of_its_queue(talk):
    offsets = talk.broker.offsets
    for queue_id in (0, 1):
        offsets.put("G", "T", queue_id, 9)
    offsets.put("G", "rmq_sys_X", 0, 9)
    offsets.clamp([("T", 0, 4)])
    assert offsets.queues("G", "T") == {0: 4, 1: 0}
    assert offsets.get("G", "rmq_sys_X", 0) == 9


def test_at_the_bound_a_new_entry_is_refused_and_a_known_one_changes(talk):
    offsets = talk.broker.offsets
    offsets.entries_max = 1
    offsets.put("G", "T", 0, 1)
    with pytest.raises(SystemBusy):
        offsets.put("G", "T", 1, 1)
    offsets.put("G", "T", 0, 2)
    assert offsets.get("G", "T", 0) == 2
