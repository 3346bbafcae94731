"""A bare connection that sends requests as they are written, right or wrong, and what of the answers two brokers must share.

Two properties of messages are left out: ours stores region and trace switch with each message, as Apache's broker does from 5.x on;
4.9.7 does so only where a hook is loaded.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from halfmoon.errors import HalfmoonError
from halfmoon.wire.command import Command, decode, encode
from halfmoon.wire.frame import Inbox
from halfmoon.wire.json import standard
from halfmoon.wire.record import decode_records

VOLATILE = re.compile(
    r"timestamp|time_?stamp|phy(?:offset|sic)|msgid|dataversion|delaytime|clientaddr|remoteip|brokeraddr|tps", re.I
)
"""Fields whose values are times, positions and sizes in a log whose records differ by a byte, addresses, or rates."""

OF_5_X = ("MSG_REGION", "TRACE_ON")
"""Properties that only a broker of 5.x, and ours, gives to each message."""

NOT_SHARED = ("Str", "PutTps", "topicBirthMs")
"""Ends of the names of fields that 4.9.7 does not have: two came with 5.x, one is ours. Java's clients pass over them."""


class Question(NamedTuple):
    """One request: a code, header fields as text and a body."""

    name: str
    code: int
    fields: Mapping[str, object] = {}
    body: bytes = b""


class Answer(NamedTuple):
    """What two brokers must share of an answer. The remark counts only with a refusal: with success it is left to chance."""

    code: int
    remark: str | None
    fields: dict[str, str]
    body: Any


class Asker:
    """One connection to a broker."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._address = "{}:{}".format(*self._socket.getsockname()[:2])
        self._inbox, self._opaque = Inbox(), 0
        self.notices: list[int] = []
        """Codes of the requests that the broker sent."""

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def ask(self, question: Question, serialization: int = 0) -> Answer:
        """Send a question and return the answer. Raises OSError when none comes or the broker closes."""
        self._opaque += 1
        fields = {name: str(value) for name, value in question.fields.items()}
        self._socket.sendall(encode(Command(question.code, 0, self._opaque, 0, 409, None, fields, question.body, serialization)))
        while True:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError(f"closed instead of an answer to {question.name}")
            self._inbox.feed(data)
            answer = None
            for frame in self._inbox.frames():
                command = decode(frame.header, frame.body, frame.serialization)
                if not command.is_response:
                    self.notices.append(command.code)
                elif command.opaque == self._opaque:
                    answer = self._answer(command)
            if answer is not None:
                return answer

    def _answer(self, command: Command) -> Answer:
        remark = command.remark if command.code else None
        if remark is not None:
            remark = remark.replace(self._address, "CLIENT").replace("[/", "[").replace(" \n", "\n")
        fields = {name: "?" if VOLATILE.search(name) else value for name, value in command.fields.items()}
        return Answer(command.code, remark, fields, _body(bytes(command.body)))


def _body(body: bytes) -> Any:
    if not body:
        return None
    if body[:1] in (b"{", b"["):
        return steady(json.loads(standard(body)))
    try:
        return [
            (m.topic, m.queue_id, m.queue_offset, m.body, _shared(m.properties), m.flag, m.sys_flag, m.born_ms, m.reconsume_times)
            for m in decode_records(body)
        ]
    except HalfmoonError:
        return body


def steady(value: Any) -> Any:
    """Return a JSON value without what differs from run to run, came with 5.x or is ours alone; lists are sets on the wire."""
    if isinstance(value, dict):
        return {k: "?" if VOLATILE.search(k) else steady(v) for k, v in value.items() if not k.endswith(NOT_SHARED)}
    if isinstance(value, list):
        return sorted((steady(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


def _shared(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in OF_5_X}
