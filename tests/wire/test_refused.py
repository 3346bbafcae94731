"""What no server answers, and that nothing of 4.9 is left out: every code is answered by somebody, or refused with a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import halfmoon
from halfmoon.wire.refused import NEVER, REFUSED
from halfmoon.wire.table import REQUESTS, not_supported, request_text
from tools.generate_protocol import answered

OF_4_9 = {
    *range(10, 16), 17, *range(21, 24), *range(25, 44), 45, 46, *range(50, 55), *range(100, 107), *range(200, 217),
    *range(219, 225), *range(300, 330),
}  # fmt: skip
"""Codes of RequestCode in RocketMQ 4.9.7."""

PENDING = set(range(50, 55))
"""Codes of 4.9 that are neither: access control. Only shrinks."""


@pytest.fixture(scope="module")
def by():
    return answered()


def test_every_code_of_4_9_is_answered_or_refused_with_a_reason(by):
    assert OF_4_9 - set().union(*by.values()) - REFUSED.keys() <= PENDING


def test_every_declared_request_is_answered_by_somebody(by):
    assert REQUESTS.keys() - PENDING <= set().union(*by.values())


def test_every_code_that_is_answered_is_declared(by):
    assert set().union(*by.values()) <= REQUESTS.keys()


def test_nothing_that_is_refused_is_answered_or_declared(by):
    assert not REFUSED.keys() & (REQUESTS.keys() | set().union(*by.values()))


def test_the_remark_is_the_originals_with_the_reason_where_there_is_one():
    assert not_supported(9999) == " request type 9999 not supported"
    assert REFUSED[13].reason == NEVER
    assert not_supported(13) == " request type 13 not supported"
    assert not_supported(905).endswith("905 not supported: roles do not change while a broker runs")


def test_texts_name_the_request_whether_it_is_answered_or_refused():
    assert [request_text(code) for code in (310, 907, 9999)] == ["SEND_MESSAGE_V2 (310)", "GET_BROKER_HA_STATUS (907)", "9999"]


def test_no_line_of_a_log_has_the_code_of_a_request_without_its_name():
    source = Path(halfmoon.__file__).parent
    bare = [
        f"{path.relative_to(source)}:{call.lineno}"
        for room in ("broker", "client", "nameserver", "programs", "runtime")
        for path in (source / room).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and any(isinstance(each, ast.Constant) and "code=%" in str(each.value) for each in call.args)
    ]
    assert bare == []
