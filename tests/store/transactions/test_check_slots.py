"""Check slots: a history of fifteen, told from that of another message, and nothing where bytes are torn."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.store.transactions import check_slots
from halfmoon.store.transactions.check_slots import FILE_SLOTS, SENT_MAX, Check, CheckSlots
from halfmoon.testing.disk import SimDisk


def slots_on(disk: SimDisk) -> CheckSlots:
    slots = CheckSlots(disk)
    slots.load()
    return slots


def test_nobody_was_asked_where_there_is_no_file():
    disk = SimDisk(Random(1))
    assert slots_on(disk).checks(5, 1000) == (0, 0, [])
    assert disk.list("transaction/checks") == []


def test_checks_and_answers_are_remembered_over_a_restart():
    disk = SimDisk(Random(1))
    slots = slots_on(disk)
    slots.checked(5, 1000, 50, 0x1234567)
    slots.answered(5, 1000, 1)
    slots.checked(5, 1000, 60, 0xABCDEF)
    expected = (2, 2, [Check(50, 1, 0x234567), Check(60, 0, 0xABCDEF)])
    assert slots.checks(5, 1000) == expected
    disk.crash(power=False)
    assert slots_on(disk).checks(5, 1000) == expected


def test_the_last_fifteen_stay_and_all_are_counted():
    slots = slots_on(SimDisk(Random(1)))
    for number in range(40):
        slots.checked(3, 77, 100 + number, number)
        slots.answered(3, 77, 1 + number)
    sent, _, history = slots.checks(3, 77)
    assert sent == 40
    assert history == [Check(100 + number, 1 + number, number) for number in range(25, 40)]


def test_an_answer_may_pardon_the_checks_until_then_and_they_stay_in_the_history():
    disk = SimDisk(Random(1))
    slots = slots_on(disk)
    for number in range(3):
        slots.checked(3, 77, 100 + number, 1)
    slots.answered(3, 77, 4, pardons=SENT_MAX)
    slots.checked(3, 77, 200, 2)

    disk.crash(power=False)
    sent, counted, history = slots_on(disk).checks(3, 77)
    assert (sent, counted) == (4, 1)
    assert history == [Check(100, 0, 1), Check(101, 0, 1), Check(102, 4, 1), Check(200, 0, 2)]


def test_an_answer_may_come_to_an_earlier_check_and_pardon_that_one_alone():
    slots = slots_on(SimDisk(Random(1)))
    for number in range(20):
        slots.checked(3, 77, 100 + number, number)
    slots.answered(3, 77, 5, back=14, pardons=1)
    slots.answered(3, 77, 5, back=15, pardons=1)  # it is not remembered any more

    _, counted, history = slots.checks(3, 77)
    assert counted == 19
    assert [check.producer for check in history if check.answer] == [5]


def test_an_answer_without_a_check_is_nothing():
    disk = SimDisk(Random(1))
    slots = slots_on(disk)
    slots.answered(3, 77, 1)
    assert slots.checks(3, 77) == (0, 0, [])
    assert disk.list("transaction/checks") == []


@pytest.mark.parametrize("answer", [0, 256, -1])
def test_an_answer_is_one_byte(answer: int):
    with pytest.raises(ValueError, match="answer"):
        slots_on(SimDisk(Random(1))).answered(3, 77, answer)


def test_a_slot_of_another_message_with_the_same_index_is_empty():
    slots = slots_on(SimDisk(Random(1)))
    slots.checked(3, 77, 100, 1)
    assert slots.checks(3, 78) == (0, 0, [])
    slots.checked(3, 78, 200, 2)
    assert slots.checks(3, 78) == (1, 1, [Check(200, 0, 2)])
    assert slots.checks(3, 77 + 2**32) == (0, 0, [])


def test_a_slot_with_any_byte_changed_reads_as_never_checked():
    disk = SimDisk(Random(1))
    slots = slots_on(disk)
    slots.checked(1, 77, 100, 1)
    slots.checked(2, 88, 100, 1)
    data = disk.open("transaction/checks/00000000000000000000").data
    for at in range(128, 256):
        data[at] ^= 0x55
        assert slots.checks(1, 77) == (0, 0, []), at
        data[at] ^= 0x55
    assert slots.checks(1, 77)[0] == slots.checks(2, 88)[0] == 1


def test_a_file_of_another_size_is_removed():
    disk = SimDisk(Random(1))
    disk.create("transaction/checks/00000000000000000000", 100)
    slots = slots_on(disk)
    assert slots.checks(0, 0) == (0, 0, [])
    slots.checked(0, 0, 1, 1)
    assert slots.checks(0, 0)[0] == 1


def test_files_below_an_index_go():
    disk = SimDisk(Random(1))
    slots = slots_on(disk)
    for index in (0, FILE_SLOTS, 5 * FILE_SLOTS + 7):
        slots.checked(index, index, 1, 1)
    assert len(slots.take_dirty()) == 3
    assert slots.take_new_names()
    assert slots.drop_before(2 * FILE_SLOTS - 1) == ["transaction/checks/00000000000000000000"]
    assert slots.checks(0, 0) == (0, 0, [])
    assert slots.checks(FILE_SLOTS, FILE_SLOTS)[0] == 1


def test_few_files_are_open_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check_slots, "FILE_SLOTS", 1)
    slots = slots_on(SimDisk(Random(1)))
    for index in range(200):
        slots.checked(index, index, index, index)
    assert len(slots._open) == 64
    assert all(slots.checks(index, index) == (1, 1, [Check(index, 0, index)]) for index in range(200))
