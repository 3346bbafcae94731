"""The recent half messages are bounded by number and bytes, and the oldest go first."""

from halfmoon.broker import recent
from halfmoon.broker.recent import HalfMessage, Recent
from halfmoon.hot import Messages

HALF = HalfMessage(0, "g", "T", 0, Messages())


def test_the_oldest_go_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(recent, "COUNT_MAX", 3)
    found = Recent()
    for index in range(5):
        found.add(index, HALF, 10)

    assert [index for index in range(5) if found.get(index)] == [2, 3, 4]


def test_the_oldest_go_when_they_are_too_large_and_what_was_taken_out_counts_no_more(monkeypatch):
    monkeypatch.setattr(recent, "BYTES_MAX", 100)
    found = Recent()
    for index in range(4):
        found.add(index, HALF, 30)
    assert [index for index in range(4) if found.get(index)] == [1, 2, 3]

    found.take([2])
    found.take([2, 77])
    found.add(9, HALF, 30)
    assert [index for index in range(10) if found.get(index)] == [1, 3, 9]
    found.add(10, HALF, 1000)
    assert len(found) == 0
