"""Formats in which `halfmoon consume` writes messages: tokens as kcat has them, compiled once, and bytes of a body as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from halfmoon.cli.shared.bodies import BodyBudget
from halfmoon.cli.shared.lines import plain
from halfmoon.model import StoredMessage

Part = Callable[[StoredMessage, bytes], bytes]
"""Returns the bytes of one token, given a message and its body."""


def _text(of: Callable[[StoredMessage], object]) -> Part:
    return lambda message, _: str(of(message)).encode("utf-8", "surrogateescape")


TOKENS: dict[str, tuple[str, Part]] = {
    "b": ("body", lambda message, body: body),
    "B": ("bytes of the body", lambda message, body: str(len(body)).encode()),
    "k": ("keys", _text(lambda message: " ".join(message.keys))),
    "t": ("topic", _text(lambda message: message.topic)),
    "g": ("tag", _text(lambda message: message.tag or "")),
    "h": ("properties, as name=value,…", _text(lambda message: ",".join(f"{k}={v}" for k, v in message.properties.items()))),
    "i": ("message id", _text(lambda message: message.msg_id)),
    "r": ("broker", _text(lambda message: message.broker_name)),
    "p": ("queue", _text(lambda message: message.queue_id)),
    "o": ("offset", _text(lambda message: message.queue_offset)),
    "T": ("time of storage, ms", _text(lambda message: message.store_ms)),
}
"""Tokens of a format, each with its meaning and the function that returns its bytes."""
TOKENS_TEXT = ", ".join(f"%{token} {meaning}" for token, (meaning, _) in TOKENS.items())
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
BODIES = "%b\\n"
"""The format of bodies, one a line."""


class MessageFormat:
    """Format of messages. Raises click.BadParameter for an unknown token or escape."""

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | Part] = []
        at = 0
        while at < len(text):
            sign, token = text[at], text[at + 1 : at + 2]
            if sign == "%" and token == "%":
                part, at = b"%", at + 2
            elif sign == "%" and token in TOKENS:
                self._parts.append(TOKENS[token][1])
                at += 2
                continue
            elif sign == "%":
                raise click.BadParameter(f"--format: %{token} is unknown; use {TOKENS_TEXT}, %% percent sign")
            elif sign == "\\":
                part, at = _escaped(text, at + 1)
            else:
                part, at = sign.encode("utf-8", "surrogateescape"), at + 1
            self._parts.append(part)

    def of(self, message: StoredMessage, bodies: BodyBudget, *, printable: bool) -> bytes:
        """Return a message in this format; ``printable``: what comes from the message steers no terminal."""
        body, parts = bodies.of(message) or b"", []
        for part in self._parts:
            if isinstance(part, bytes):
                parts.append(part)
            else:
                value = part(message, body)
                parts.append(_printable(value) if printable else value)
        return b"".join(parts)

    def show(self, message: StoredMessage, bodies: BodyBudget) -> None:
        """Write a message to standard output, byte by byte as it is where that is no terminal."""
        out = sys.stdout
        out.flush()
        out.buffer.write(self.of(message, bodies, printable=out.isatty()))
        out.buffer.flush()


def _printable(value: bytes) -> bytes:
    text = value.decode("utf-8", "backslashreplace")
    return plain(text, len(text)).encode()


def _escaped(text: str, at: int) -> tuple[bytes, int]:
    """Return the byte that an escape stands for, and where the text goes on."""
    if (known := ESCAPES.get(text[at : at + 1])) is not None:
        return known, at + 1
    digits = text[at + 1 : at + 3]
    if text[at : at + 1] == "x" and len(digits) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
        return bytes.fromhex(digits), at + 3
    raise click.BadParameter(f"--format: \\{text[at : at + 1]} is no escape; these are: \\n, \\t, \\r, \\0, \\\\ and \\xHH")
