"""Tests of the reference page: it is what the table says now, and it names every request and every field."""

from __future__ import annotations

import pytest

from halfmoon.wire.table import REQUESTS
from tools import generate_protocol


def test_the_reference_page_is_what_the_table_says_now():
    assert generate_protocol.PAGE.read_text() == generate_protocol.page(), "stale: run make docs"


@pytest.mark.parametrize("line", REQUESTS.values(), ids=lambda line: line.name)
def test_every_request_and_every_field_is_on_the_page(line):
    text = generate_protocol.page()

    section = text[text.index(f"### {line.code} {line.name}") :].split("\n#", 1)[0]
    names = (*line.header.__struct_encode_fields__, *line.reply.__struct_encode_fields__)
    assert [name for name in names if f"`{name}`" not in section] == []
