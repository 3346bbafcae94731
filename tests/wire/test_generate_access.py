"""Tests of the table of who may ask what: it is what the code says now, and no name in a request is left out without a reason."""

from __future__ import annotations

import pytest

from halfmoon.wire.needs import Needs
from halfmoon.wire.table import REQUESTS
from tools import generate_access
from tools.generate_protocol import answered

OBJECTS = frozenset((
    "topic", "group", "consumer_group", "producer_group", "compare_group", "transactional_id",
    "offset", "commit_log_offset", "msg_id",
))  # fmt: skip
"""Fields that name what a request is about: topics, groups, and places of messages."""

LABELS = "a label: nothing is looked up by it"
NOT_CHECKED = {
    (10, "producer_group"): LABELS, (310, "producer_group"): LABELS, (320, "producer_group"): LABELS,
    (324, "producer_group"): LABELS, (325, "producer_group"): LABELS, (370, "producer_group"): LABELS,
    (33, "topic"): LABELS, (37, "topic"): LABELS, (309, "topic"): LABELS, (323, "topic"): LABELS,
    (37, "msg_id"): "only of an expired half message, whose record is looked at",
    (35, "producer_group"): "the connection leaves it, nobody else",
    (222, "offset"): "one of the queue",
}  # fmt: skip


def test_the_table_is_what_the_code_says_now():
    assert generate_access.PAGE.read_text() == generate_access.page(), "stale: run make docs"


def test_every_request_that_a_server_answers_has_a_declared_object_and_a_row():
    rows = generate_access.table()
    codes = [code for who, codes in answered().items() if who != "client" for code in codes]
    assert len(codes) > 100
    for code in codes:
        assert REQUESTS[code].needs is not None, f"{REQUESTS[code].name} does not say what it needs"
        assert f"| {code} | {REQUESTS[code].name} |" in rows


@pytest.mark.parametrize("code", sorted(answered()["broker"]))
def test_a_broker_checks_every_name_in_a_request_of_an_ordinary_account(code):
    line = REQUESTS[code]
    assert line.needs is not None
    if line.needs.admin:
        return
    names = {*line.header.__struct_fields__} & OBJECTS
    unchecked = names - _checked(line.needs) - {name for of, name in NOT_CHECKED if of == code}
    assert not unchecked, f"{line.name} names {unchecked}, and no permission of it is needed: see halfmoon.wire.needs"


def test_what_is_not_checked_is_there():
    for code, name in NOT_CHECKED:
        line = REQUESTS[code]
        assert name in line.header.__struct_fields__
        assert line.needs is not None
        assert name not in _checked(line.needs)


def test_the_table_is_replaced_and_the_text_around_it_stays(tmp_path):
    path = tmp_path / "access.md"
    path.write_text(f"before {generate_access.BEGIN}old{generate_access.END} behind")

    text = generate_access.page(path)

    assert "old" not in text
    assert text.startswith("before ")
    assert text.endswith(" behind")


def _checked(needs: Needs) -> set[str]:
    record = () if needs.record is None else (needs.record[0],)
    return {
        *needs.publish, *needs.replies, *needs.topics, *needs.groups, *needs.looks, *needs.members, *needs.produces, *record,
    }  # fmt: skip
