"""Arguments of `scan` and `table`: what is refused before anything is read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from halfmoon.data.scanning import scan
from halfmoon.errors import HalfmoonError, SettingError, UsageError
from halfmoon.sql92.refusals import ExpressionRefused


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"since": "yesterday"}, "since: 'yesterday' is not a time"),
        ({"until": datetime(2026, 1, 1)}, "until=2026-01-01 00:00:00 needs a time zone"),
        ({"tags": "a", "sql": "x = 1"}, "exclude each other"),
        ({"column": ["body"]}, "column"),
        ({"columns": "body"}, "give a list of names"),
        ({"columns": ["body", "body"]}, "something twice"),
        ({"read_from": "there"}, "give auto, master"),
        ({"threads": 65}, "threads is 0 to 64"),
        ({"fetch_bytes": 1}, "fetch_bytes 1024 to"),
        ({"decode": "yaml"}, "decode='yaml' is unknown"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_to_give_and_without_a_request(given: dict[str, Any], says: str):
    with pytest.raises((UsageError, SettingError), match=says):
        scan("orders", nameserver="127.0.0.1:1", **given)


def test_a_wrong_expression_is_refused_at_once():
    with pytest.raises(ExpressionRefused, match="write = once"):
        scan("orders", nameserver="127.0.0.1:1", sql="x = = 1")


def test_a_name_server_that_does_not_answer_is_an_error_of_the_scan():
    dataset = scan("orders", nameserver="127.0.0.1:1", retries_max=0, request_timeout_ms=500)

    assert len(dataset.schema) == 17
    with pytest.raises(HalfmoonError):
        dataset.to_table()
