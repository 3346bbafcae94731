"""What producers decided in one turn, and the half messages in memory that they decided about."""

import pytest

from halfmoon.hot import ENTRY
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.transaction import EndTransaction

BORN = b"\x7f\0\0\1\0\0\x2a\x9f"
ENTRIES = b"".join([ENTRY.pack(100 * number, 40, 0) for number in range(5)])


def halves(twin, count=5, **bounds):
    """Return half messages 10, 11, … of two queues; the bodies are their numbers."""
    found = twin.HalfMessageCache(bounds.get("count_max", 100), bounds.get("bytes_max", 1000))
    for number in range(count):
        draft = (b"%d" % (10 + number), b"K\x01v\x02", 0, 0, 5, BORN, 0, 0, 7)
        found.add(10 + number, ENTRIES[20 * number :][:20], "T", number % 2, "g", twin.Messages([draft]))
    return found


def here(found):
    return [index for index in range(30) if found.get(index)]


def test_the_oldest_go_when_there_are_too_many(twin):
    assert here(halves(twin, count_max=3)) == [12, 13, 14]


def test_the_oldest_go_when_they_are_too_large_and_what_was_dropped_counts_no_more(twin):
    found = halves(twin, bytes_max=120)
    assert here(found) == [12, 13, 14]

    found.drop([13])
    found.drop([13, 77])
    found.add(19, ENTRIES[:20], "T", 0, "g", found.get(14))
    assert here(found) == [12, 14, 19]
    found.add(20, ENTRY.pack(0, 1000, 0), "T", 0, "g", found.get(14))
    assert len(found) == 0


def test_endings_are_sorted_by_queue_and_others_are_left(twin):
    completions = twin.Completions()
    for group, index, place, committed in [
        ("g", 11, 100, True), ("g", 10, 0, True), ("g", 12, 200, False), ("h", 13, 300, True), ("g", 13, 301, True),
        ("g", 13, 300, True), ("g", 13, 300, False), ("g", 77, 0, True),
    ]:  # fmt: skip
        completions.add((1, index, 0) if committed else None, 1, group, index, place, committed, f"u{index}")
    recent = halves(twin)
    groups, numbers, rolled_back, indexes, others = recent.decide(completions)

    assert [group[:3] for group in groups] == [("T", 1, ""), ("T", 0, "")]
    assert [[(draft[0], draft[3], draft[7]) for draft in group[3].drafts] for group in groups] == [
        [(b"11", 8, 100), (b"13", 8, 300)], [(b"10", 8, 0)],
    ]  # fmt: skip
    assert (numbers, rolled_back, indexes, others) == ([[0, 5], [1]], [2], [11, 13, 10, 12], [3, 4, 6, 7])
    assert recent.decide(completions, [1, 7])[1:] == ([[1]], [], [10], [7])
    assert completions.tally([3, 1, 0], [2]) == ([(1, 13, 0), (1, 10, 0), (1, 11, 0)], [("h", 1, 0), ("g", 2, 1)])
    assert completions.at(4) == ((1, 13, 0), 1, "g", 13, 301, True, "u13")
    assert len(recent) == 5
    with pytest.raises(IndexError):
        completions.at(8)


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("oneway", [False, True])
@pytest.mark.parametrize("check", [None, False, True])
@pytest.mark.parametrize("decision", [8, 12])
def test_what_a_producer_decides_is_read(compiled, serialization, oneway, check, decision):
    header = EndTransaction(
        producer_group="g", tran_state_table_offset=2**40, commit_log_offset=2**50, commit_or_rollback=decision, msg_id="u",
        from_transaction_check=check, transaction_id="é",
    )  # fmt: skip
    reader = compiled.Reader(b"", 100)
    frame = encode(request_command(header, opaque=77, serialization=serialization, oneway=oneway))
    assert reader.read(9, BORN, frame)[:2] == ([], len(frame))

    found = reader.completions()
    assert found.at(0) == (None if oneway else (9, 77, serialization), 9, "g", 2**40, 2**50, decision == 8, "u")
    assert (len(found), found.checks) == (1, [0] if check else [])
    assert reader.completions() is None


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize(
    "changed",
    [
        {"commit_or_rollback": 0}, {"producer_group": None}, {"msg_id": None}, {"commit_log_offset": None},
        {"commit_log_offset": 2**63}, {"commit_or_rollback": 2**31 + 8}, {"tran_state_table_offset": "1_0"},
        {"from_transaction_check": "maybe"}, {"still_open": "maybe"},
    ],
)  # fmt: skip
def test_what_decides_nothing_or_is_unusual_is_left_to_the_general_decoder(twin, serialization, changed):
    fields = {
        "producer_group": "g", "tran_state_table_offset": 5, "commit_log_offset": 6, "commit_or_rollback": 8, "msg_id": "u",
    } | changed  # fmt: skip
    frame = encode(request_command(EndTransaction(**fields), serialization=serialization))
    reader = twin.Reader(b"", 100)

    assert len(reader.read(9, BORN, frame)[0]) == 1
    assert reader.completions() is None
