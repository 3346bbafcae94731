"""A plan puts every problem to its part of the store, and says what is lost. Whole repairs: `tests/programs/test_repair.py`."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.store.check.fsck import Problem, fsck
from halfmoon.store.check.repair import plan_repair
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, close, draft, open_store, small


@pytest.fixture
def disk() -> SimDisk:
    """A stopped store with a hundred messages."""
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for number in range(100):
        store.append("t", number % 2, [draft(b"%03d" % number)], NOW)
    close(store)
    return disk


def test_a_sound_store_needs_nothing(disk: SimDisk):
    assert not plan_repair(disk, small(), fsck(disk, small())).needed


@pytest.mark.parametrize(
    ("problem", "part"),
    [
        (Problem("t, queue 0, offset 7", "entry", "is wrong"), ("queues", [("t", 0)])),
        (Problem("index, queue 1", "entries", "are wrong"), ("queues", [("index", 1)])),
        (Problem("consumequeue/t/1", "files", "all are missing"), ("queues", [("t", 1)])),
        (Problem("consumequeue/t/1/00000000000000000000", "file", "is missing"), ("queues", [("t", 1)])),
        (Problem("commitlog/00000000000000065536, byte 7", "record", "x", size_bytes=9), ("damage", [(65543, 9, "x")])),
        (Problem("config/topics.json", "table", "is empty"), ("tables", ["config/topics.json"])),
        (Problem("index/20260101000000000", "file", "is missing"), ("index", "index/20260101000000000: file: is missing")),
        (Problem("index, physical offset 3", "record", "r"), ("index", "index, physical offset 3: record: r")),
        (Problem("transaction/redolog", "files", "r"), ("transactions", "transaction/redolog: files: r")),
        (Problem("config/consumerOffset.json", "progress", "r"), ("progress", "config/consumerOffset.json: progress: r")),
    ],
)
def test_every_place_that_fsck_names_belongs_to_a_part(disk: SimDisk, problem: Problem, part: tuple[str, object]):
    plan = plan_repair(disk, small(), [problem])
    name, expected = part
    found = getattr(plan, name)
    assert (list(found) if isinstance(expected, list) else found) == expected
    assert plan.needed
    assert not plan.left


def test_what_is_not_certain_is_left_alone(disk: SimDisk):
    assert not plan_repair(disk, small(), [Problem("t, queue 0", "queue", "has no files", certain=False)]).needed


def test_what_no_step_is_for_is_left(disk: SimDisk):
    problem = Problem("something else", "is", "wrong")
    plan = plan_repair(disk, small(), [problem])
    assert plan.left == [problem]
    assert not plan.needed


def test_messages_that_lay_in_damage_are_named_by_queue_and_offset(disk: SimDisk):
    [plan] = [plan_repair(disk, small(), [Problem("commitlog/00000000000000000000, byte 0", "record", "r", size_bytes=500)])]
    [step] = plan.steps
    assert step.lost == "t, queue 0, offsets 0 to 2 (3 messages); t, queue 1, offsets 0 to 2 (3 messages)"
