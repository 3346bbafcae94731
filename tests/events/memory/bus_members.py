"""Publishers and consumers on a `MemoryBus`, for tests of the bus itself: plain transports and plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import message_of
from halfmoon.events.event import Event
from halfmoon.events.memory.transport import MemoryTransport
from halfmoon.events.publishing.transport import Prepared
from halfmoon.events.testing import MemoryBus
from halfmoon.model import LocalTransactionState, Message, StoredMessage

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN, OPEN = LocalTransactionState.UNKNOWN, LocalTransactionState.OPEN


def message(number: int = 1, topic: str = "TP_ORDER", code: str = "EC_PAID") -> Message:
    event = Event(id=f"{number:032X}", topic=topic, code=code, payload={"n": number}, key=f"k{number}")
    return message_of(event, Codecs(), group="P_shop", now_ms=1)


def member(bus: MemoryBus, answer: Callable[[StoredMessage], LocalTransactionState] = lambda stored: UNKNOWN) -> MemoryTransport:
    found = bus.transport("P_shop")
    found.start(answer)
    return found


def half(transport: MemoryTransport, number: int = 1, attempt: int = 1) -> Prepared:
    return transport.prepare(message(number), attempt=attempt, timeout_ms=1, check_after_s=None)


class Reader:
    """A consumer that keeps what it gets and answers what it is told to."""

    def __init__(self, bus: MemoryBus, group: str = "S_mail", codes: str = "*", **options: Any) -> None:
        self.got: list[tuple[str, int, str | None]] = []
        self.answers: list[tuple[bool, str] | Exception] = []
        self.leave = bus.subscribe(group, {"TP_ORDER": codes}, self.deliver, **options)

    def deliver(self, stored: StoredMessage, attempt: int) -> tuple[bool, str]:
        self.got.append((stored.msg_id[-1], attempt, stored.properties.get("RECONSUME_REASON")))
        said = self.answers.pop(0) if self.answers else (True, "")
        if isinstance(said, Exception):
            raise said
        return said


def ids(records: tuple[object, ...]) -> list[str]:
    return [record.id[-1] for record in records]  # type: ignore[attr-defined]
