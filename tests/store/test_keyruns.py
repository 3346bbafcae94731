"""Runs of alike records: their keys are what each record by itself says, and anything else is left to be read one by one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.store.commitlog import CommitLog
from halfmoon.store.keyruns import RUN, keys_of_run
from halfmoon.store.records import RecordFacts, check_at, keys_of
from halfmoon.testing.disk import SimDisk
from tests.store.driving import BORN, HOST, NOW


def records(properties: list[str], sys_flag: int = 0, topic: str = "topic") -> bytes:
    log = CommitLog(SimDisk(Random(1)), 1 << 20, HOST, 1 << 16)
    log.segments.load()
    log.set_end(0)
    for number, text in enumerate(properties):
        draft = (b"body", text.encode(), 0, sys_flag, NOW, BORN, 0, 0, 0)
        log.append(topic, 0, number, [draft], NOW + number, whole=False)
    view = log.view(0, log.end)
    assert view is not None
    return bytes(view)


@settings(max_examples=60, deadline=None)
@given(st.text("ab#|", min_size=1, max_size=5), st.sampled_from(["", "TAGS\x01A\x02", "KEY\x01a\x02KEYSx\x01b\x02"]), st.data())
def test_the_keys_of_a_run_are_those_of_each_of_its_records(topic: str, back: str, data: st.DataObject):
    written = records([f"UNIQ_KEY\x01{number:04}\x02{back}" for number in range(RUN + 2)], topic=topic)
    damaged = bytearray(written)
    if data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.sampled_from([0, 1, 2, 255]))

    found = keys_of_run(memoryview(bytes(damaged)), 0)

    if found is None:
        assert damaged != written
        return
    size, texts, times = found
    for number in range(RUN):
        at = number * size
        size_there = int.from_bytes(damaged[at : at + 4], "big")
        body_end = at + 88 + int.from_bytes(damaged[at + 84 : at + 88], "big")
        text = bytes(damaged[body_end : at + size_there])
        keys = keys_of(text[1 + text[0] + 2 :])
        assert (size_there, [text[1 : 1 + text[0]] + b"#" + key for key in keys]) == (size, [texts[number]])
        assert times[number] == int.from_bytes(damaged[at + 56 : at + 64], "big", signed=True)
    if damaged == written:
        facts = check_at(memoryview(written), 0, 0)
        assert isinstance(facts, RecordFacts)
        assert (facts.size_bytes, facts.store_ms) == (size, times[0])


@pytest.mark.parametrize(
    ("change", "sys_flag"),
    [
        ({}, 0x4), ({5: "UNIQ_KEY\x010\x0205\x02"}, 0), ({5: "UNIQ_KEY\x01005\x02"}, 0), ({5: "KEYS_OF_\x010005\x02"}, 0),
        (dict.fromkeys(range(RUN), "UNIQ_KEY\x011\x02KEYS\x01a\x02"), 0), (dict.fromkeys(range(RUN), "UNIQ_KEY\x01\x02"), 0),
        (dict.fromkeys(range(RUN), "UNIQ_KEY\x011234"), 0), (dict.fromkeys(range(RUN), ""), 0),
    ],
)  # fmt: skip
def test_records_that_are_not_alike_or_not_ordinary_are_no_run(change: dict[int, str], sys_flag: int):
    properties = [f"UNIQ_KEY\x01{number:04}\x02" for number in range(RUN)]
    assert keys_of_run(memoryview(records(properties)), 0) is not None

    assert keys_of_run(memoryview(records([change.get(n, text) for n, text in enumerate(properties)], sys_flag)), 0) is None


def test_a_run_never_reaches_beyond_what_may_be_read():
    written = records([f"UNIQ_KEY\x01{number:04}\x02" for number in range(RUN)])
    assert keys_of_run(memoryview(written), 0) is not None
    assert keys_of_run(memoryview(written)[:-1], 0) is None
    assert keys_of_run(memoryview(written), len(written) // RUN) is None
