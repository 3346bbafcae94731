"""The page on Apache's admin tool says what was recorded, and the record has every call of the table with its mark."""

from __future__ import annotations

import json

from tests.interop.mqadmin.commands import NUMBERED, mark
from tests.interop.mqadmin.result import RESULT
from tools import generate_mqadmin


def test_the_page_is_what_the_record_says():
    assert generate_mqadmin.PAGE.read_text() == generate_mqadmin.page(json.loads(RESULT.read_text())), "stale: run make docs"


def test_the_record_has_the_calls_and_marks_of_the_table():
    expected = [(call, *mark(call)) for call in NUMBERED]

    found = [(entry["call"], entry["result"], entry.get("reason", "")) for entry in json.loads(RESULT.read_text())]

    assert found == expected, "stale: run tests/interop/mqadmin with RECORD=1, then python tools/generate_mqadmin.py"


def test_a_call_that_differs_stands_on_the_page_with_its_reason():
    text = generate_mqadmin.page([
        {"call": "topicList", "result": "same"},
        {"call": "topicList -c", "result": "differs", "reason": "ours is better"},
        {"call": "queryCq -t T", "result": "open", "reason": "321 is missing"},
        {"call": "clusterList", "result": "same"},
    ])  # fmt: skip

    assert "2 of 4 calls print the same" in text
    assert "| `clusterList` | 1 | all |" in text
    assert "| `topicList` | 2 | 1 |" in text
    assert "| `topicList -c` | ours is better |" in text
    assert "| `queryCq -t T` | **open**: 321 is missing |" in text
