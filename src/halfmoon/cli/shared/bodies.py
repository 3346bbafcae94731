"""Bodies of messages in the JSON that commands write: whole, up to a total that depends on how much is stored."""

from __future__ import annotations

from typing import Any

from halfmoon.cli.shared.lines import say
from halfmoon.limits import FRAME_BYTES_MAX
from halfmoon.model import StoredMessage
from halfmoon.shown.texts import body_facts, message_facts

FOR_EACH_BYTE = 32
"""Bytes that one stored byte may unpack to. Text compresses to a tenth; compression to a thousandth is an attack."""
BODY_BYTES_MAX = 4 * FRAME_BYTES_MAX


class BodyBudget:
    """Budget for the bodies that one command writes: 16 MiB in all, plus 32 times their stored size.

    A body beyond that is left out.

    Otherwise a sender could fill a terminal or a disk: 65 KB can unpack to 64 MiB. Bodies that are not compressed always fit.
    """

    def __init__(self) -> None:
        self._left = FRAME_BYTES_MAX
        self._left_out = 0

    def of(self, message: StoredMessage) -> bytes | None:
        """Return a message's body; None: it is left out, which is reported for the first one on standard error."""
        self._left += FOR_EACH_BYTE * message.held_bytes
        room = min(self._left, BODY_BYTES_MAX)
        if len(message.beginning(room + 1)) > room:
            self._left_out += 1
            if self._left_out == 1:
                text = f"{why(message)}; others may be left out likewise. The console's page of a message downloads its body"
                say(f"halfmoon: the body of message {message.offset_msg_id} is left out: {text}", error=True)
            return None
        body = message.body
        self._left -= len(body)
        return body

    def facts(self, message: StoredMessage) -> dict[str, Any]:
        """Return all facts of a message; if ``body`` is null without a ``body_hex``, ``body_left_out`` has the reason."""
        body = self.of(message)
        shown = {"body": None, "body_left_out": why(message)} if body is None else body_facts(body)
        return message_facts(message) | shown


def why(message: StoredMessage) -> str:
    """Return the reason why a body is left out."""
    return f"its {message.held_bytes:,} bytes unpack to more than {FOR_EACH_BYTE} times as many, and more than there was room for"
