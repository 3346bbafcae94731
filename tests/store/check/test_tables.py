"""What `fsck` finds in the broker's saved tables: what is ahead of its queue, and what cannot be read."""

from __future__ import annotations

import pytest

from halfmoon.testing.disk import SimDisk
from tests.store.check.test_fsck import disk as disk
from tests.store.check.test_fsck import problems
from tests.store.driving import NOW, close, draft, open_store


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        ("config/consumerOffset.json", b'{"offsetTable":{"t@g":{0:51}}}', "of group g in queue 0 of t is 51, the queue ends at 50"),
        ("config/consumerOffset.json", b"{", "cannot be read"),
        ("config/consumerOffset.json", b"", "is empty"),
        ("config/topics.json", b"[1", "cannot be read"),
        ("config/subscriptionGroup.json", b"nothing", "cannot be read"),
        ("config/topicTrims.json", b"nothing", "cannot be read"),
        ("config/queueLocks.json", b'{"locks":1}', "cannot be read"),
        ("config/delayOffset.json", b'{"offsetTable":{1:7}}', "level 1"),
        ("config/brokerUptime.json", b"{", "cannot be read"),
        ("config/brokerUptime.json", b'{"seenMs":9,"gaps":[{"beginMs":1,"endMs":7},{"beginMs":8,"endMs":11}]}', "is from 8 to 11"),
    ],
)
def test_a_table_that_does_not_agree_is_found(disk: SimDisk, path: str, data: bytes, reason: str):
    if "delay" in path:
        store = open_store(disk)
        store.append("SCHEDULE_TOPIC_XXXX", 0, [draft()], NOW)
        close(store)
    disk.save(path, data)
    [found] = problems(disk)
    assert found.place == path
    assert reason in found.reason


def test_tables_that_agree_are_sound(disk: SimDisk):
    disk.save("config/consumerOffset.json", b'{"offsetTable":{"t@g":{0:50,1:3},"gone@g":{0:99}}}')
    assert problems(disk) == []


def test_a_table_of_which_only_the_older_copy_is_there_is_found(disk: SimDisk):
    disk.save("config/topics.json.bak", b"{}")
    assert [(problem.place, "is missing" in problem.reason) for problem in problems(disk)] == [("config/topics.json", True)]
