"""Tests of the table's content: every request is there under its code and name, and survives both serialisations."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import halfmoon.wire.headers as headers
from halfmoon.errors import BadHeader
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command, decode, encode_header
from halfmoon.wire.table import REQUESTS, Header, fields_of, parse

CODES = """10 11 12 14 15 17 21 25 26 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 46 100 101 102 103 104 105 106
200 201 202 203 204 205 206 207 208 215 216 217 219 220 221 222 224 300 303 304 305 307 309 310 311 312 313 315 317 318 319 320
321 322 323 327 328 351 352 361"""
LINES = sorted(REQUESTS.values(), key=lambda line: line.code)
CLASSES = sorted({cls for line in LINES for cls in (line.header, line.reply)}, key=lambda cls: cls.__name__)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def strategy(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a header field's type."""
    if kind is str:
        return TEXT
    if kind is bool:
        return st.booleans()
    if type(None) in get_args(kind):
        return st.none() | strategy(next(part for part in get_args(kind) if part is not type(None)))
    return st.integers(kind.__metadata__[0].ge, kind.__metadata__[0].le)


def values(cls: type[Header]) -> st.SearchStrategy[Header]:
    """Return headers of a class."""
    return st.builds(cls, **{field.name: strategy(field.type) for field in msgspec.structs.fields(cls)})


def camel(constant: str) -> str:
    """Return a constant of the original as a class name."""
    return "".join(word.capitalize() for word in constant.split("_"))


def test_every_request_of_the_first_issue_is_in_the_table():
    assert set(map(int, CODES.split())) <= set(REQUESTS)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_a_class_is_named_after_its_request(line):
    assert line.header.__name__ == camel(line.name)
    assert line.header.__doc__


def test_what_only_administrators_may_send_is_marked():
    theirs = {17, 18, 25, *range(50, 55), 200, 207, 215, 225, 306, 314, 316, 329, 353, 401}
    ours = {*range(31001, 31006), 31010, 31020, 31036, 31050, 31051, 31060, 31061}
    assert {code for code, line in REQUESTS.items() if line.admin} == theirs | ours


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_request_says_what_it_needs_in_terms_of_its_own_fields_or_why_nothing(line):
    needs = line.needs
    assert needs is not None, "no needs= in its declaration"
    assert needs.text({field: field for field in line.names}) not in ("an account", "nothing")


@pytest.mark.slow
@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=8)
@given(data=st.data())
def test_a_header_survives_the_wire(cls, serialization, data):
    header = data.draw(values(cls))
    command = Command(1, serialization=serialization, fields=fields_of(header))

    found = decode(encode_header(command), b"", serialization)

    assert found.header(cls) == header


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
@settings(max_examples=8)
@given(data=st.data())
def test_any_texts_as_fields_are_a_header_or_refused(line, data):
    names = st.sampled_from([*line.header.__struct_encode_fields__, "other"])
    fields = data.draw(st.dictionaries(names, st.text(max_size=8) | st.integers().map(str), max_size=12))

    try:
        parse(line.header, fields)
    except BadHeader:
        pass


def test_every_group_of_headers_is_loaded_with_the_package():
    assert set(headers.__all__) == {
        "access", "admin", "batch", "client", "delay", "group", "offset", "pull", "ranges", "route", "send", "topic",
        "transaction",
    }  # fmt: skip
