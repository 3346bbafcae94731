"""Formats of messages: bytes as they are for programs, nothing that steers a terminal for people."""

from __future__ import annotations

from halfmoon.cli.consume.formats import BODIES, MessageFormat
from halfmoon.cli.shared.bodies import BodyBudget
from tests.client.messages import message


def test_a_body_is_written_byte_by_byte_and_made_printable_on_a_terminal():
    found = message(0, b"\x1b[2J\xff\x00")

    assert MessageFormat(BODIES).of(found, BodyBudget(), printable=False) == b"\x1b[2J\xff\x00\n"
    assert MessageFormat(BODIES).of(found, BodyBudget(), printable=True) == "·[2J\\xff·\n".encode()
