"""One line finds messages: its meaning follows from its form, or from the word before its colon."""

from __future__ import annotations

import pytest

from halfmoon.console.pages.search import Search, read_search
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue

NOW = 1_800_000_000_000
ID = "7F000001234B7A4E782A95FF4D1E0014"


@pytest.mark.parametrize(
    ("text", "search"),
    [
        ("", Search("newest", "orders")),
        (f" {ID} ", Search("id", "orders", ID)),
        ("order-4711", Search("key", "orders", "order-4711")),
        ("4711", Search("key", "orders", "4711")),
        ("2026-13-99", Search("key", "orders", "2026-13-99")),
        ("订单 4711", Search("key", "orders", "订单 4711")),
        ("order-4711 since:2h", Search("key", "orders", "order-4711", since_ms=NOW - 7_200_000)),
        ("10m", Search("since", "orders", since_ms=NOW - 600_000)),
        ("2027-01-15T08:00", Search("since", "orders", since_ms=NOW)),
        ("2027-01-15 08:00:00+00:00", Search("since", "orders", since_ms=NOW)),
        ("broker-a/0@111", Search("place", "orders", queue=MessageQueue("orders", "broker-a", 0), offset=111)),
        ("broker-a/0@0", Search("place", "orders", queue=MessageQueue("orders", "broker-a", 0), offset=0)),
        ("broker-a/3", Search("place", "orders", queue=MessageQueue("orders", "broker-a", 3))),
        ("%DLQ%C/broker-a/3@7", Search("place", "%DLQ%C", queue=MessageQueue("%DLQ%C", "broker-a", 3), offset=7)),
        ("key:10m", Search("key", "orders", "10m")),
        (f"key: {ID}", Search("key", "orders", ID)),
        ("id:abc", Search("id", "orders", "abc")),
        ("since:0", Search("since", "orders", since_ms=0)),
    ],
)
def test_a_line_says_what_it_searches_for(text: str, search: Search):
    assert read_search(text, "orders", NOW) == search


@pytest.mark.parametrize(
    ("text", "words"),
    [("place:here", "here is not a place: give BROKER/QUEUE@OFFSET"), ("place:b/99999999999", "is not a place"),
     ("since:soon", "since: 'soon' is not a time"), ("order-1 since:soon", "since: 'soon' is not a time")],
)  # fmt: skip
def test_a_line_that_names_what_it_is_not_is_refused(text: str, words: str):
    with pytest.raises(UsageError, match=words):
        read_search(text, "orders", NOW)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("", "Newest messages"), ("order-1 since:2h", "Key order-1, stored since 2027-01-15T06:00:00.000Z"), (ID, f"Id {ID}"),
     ("b/0@1111", "Queue b/0 from offset 1,111"), ("b/0", "Newest messages of queue b/0"),
     ("2h", "Messages stored since 2027-01-15T06:00:00.000Z")],
)  # fmt: skip
def test_the_meaning_is_said_in_words(text: str, meaning: str):
    assert read_search(text, "orders", NOW).meaning() == meaning
