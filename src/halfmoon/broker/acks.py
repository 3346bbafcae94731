"""Sends that are stored and wait for their answer until the log is durable (sync flush). Never waits itself.

One entry a group and turn, in the order of the log, so that one completion ("durable up to X") answers all it covers.
"""

from __future__ import annotations

from collections import deque

import msgspec

from halfmoon.broker.request import Reply, Request
from halfmoon.errors import BrokerError, ResponseCode, ServiceNotAvailable
from halfmoon.hot import ALL, AT_ONCE, DURABLE, Messages
from halfmoon.wire.codes import VERSION
from halfmoon.wire.command import Command, encode
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.peer import Peer, Peers
from halfmoon.wire.table import Header, fields_of

Sender = tuple[Peer, int, int]
"""peer, opaque, serialisation"""


class Stored(msgspec.Struct, gc=False):
    """Messages of one queue that one append stored, and what their senders are told of it."""

    messages: Messages
    queue_id: int
    queue_offset: int
    end_offset: int
    which: int = ALL
    """Which of the senders are answered."""
    deadline_ms: int = 0
    header: Header | None = None
    """What the only sender is told, where that is more than where the message lies."""


class Acks:
    """Answers to sends: at once, or once the log is durable."""

    def __init__(self, peers: Peers, region: str, host_hex: str) -> None:
        self._peers, self._region, self._host_hex = peers, region, host_hex
        self._waiting: deque[Stored] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def answer(self, stored: Stored) -> None:
        """Answer the senders with success."""
        if stored.header is not None:
            self._answer_plainly(stored, 0)
        else:
            where = stored.queue_id, stored.queue_offset, self._region, self._host_hex, VERSION
            self._peers.tell(stored.messages.answers(stored.which, *where))

    def wait(self, stored: Stored) -> None:
        """Answer those who do not wait for the device; keep the others until `durable` covers them or their deadline passes."""
        if stored.messages.answered(AT_ONCE):
            stored.which = AT_ONCE
            self.answer(stored)
        if stored.messages.answered(DURABLE):
            stored.which = DURABLE
            self._waiting.append(stored)

    def durable(self, offset: int) -> None:
        """Answer everything that ends at or before a durable offset."""
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= offset:
            self.answer(waiting.popleft())

    def failed(self, reason: str) -> None:
        """Refuse everything that waits: the sync failed, and whether it is on the device is unknown."""
        while self._waiting:
            stored = self._waiting.popleft()
            self.refuse(stored.messages, ServiceNotAvailable(reason), stored.which)

    def refuse(self, messages: Messages, refusal: BrokerError, which: int = ALL) -> None:
        """Answer the senders with a refusal's code and text."""
        self._peers.tell(
            [(peer, self._refusal(opaque, kind, refusal)) for peer, opaque, kind, how, _ in messages.senders if how & which]
        )

    def refuse_one(self, request: Request, refusal: BrokerError) -> None:
        """Answer one request with a refusal, unless it wants no answer."""
        command = request.command
        if not command.is_oneway:
            self._peers.answer(request.peer, self._refusal(command.opaque, command.serialization, refusal))

    def _refusal(self, opaque: int, serialization: int, refusal: BrokerError) -> bytes:
        """Return a refusal; region and trace switch are told as with every answer to a send."""
        command = reply_to(opaque, serialization, Reply(refusal.code, refusal.remark))
        command.fields = {"MSG_REGION": self._region, "TRACE_ON": "true"}
        return encode(command)

    def due(self) -> int | None:
        """When the first waiting sender must be told that the sync takes too long."""
        return self._waiting[0].deadline_ms if self._waiting else None

    def tick(self, now: int) -> None:
        """Answer FLUSH_DISK_TIMEOUT (stored, not known to be durable) to those who waited long enough."""
        while self._waiting and self._waiting[0].deadline_ms <= now:
            self._answer_plainly(self._waiting.popleft(), int(ResponseCode.FLUSH_DISK_TIMEOUT))

    def stepped(self, by_ms: int) -> None:
        """The clock was set: everybody waits as long as they would have."""
        for stored in self._waiting:
            stored.deadline_ms += by_ms

    def told(self, queue_id: int, queue_offset: int, places: list[int], recall_handle: str | None = None) -> SendMessageReply:
        """Return what the sender of messages at these places is told; of a batch the ids of all, joined by commas."""
        return SendMessageReply(
            msg_id=",".join(f"{self._host_hex}{place:016X}" for place in places), queue_id=queue_id, queue_offset=queue_offset,
            region_id=self._region, trace_on=True, recall_handle=recall_handle,
        )  # fmt: skip

    def _answer_plainly(self, stored: Stored, code: int) -> None:
        found, at, places = [], 0, stored.messages.places
        for peer, opaque, serialization, how, count in stored.messages.senders:
            if how & stored.which:
                told = stored.header or self.told(stored.queue_id, stored.queue_offset + at, places[at : at + count])
                found.append((peer, encode(reply_to(opaque, serialization, Reply(code, None, told)))))
            at += count
        self._peers.tell(found)


def reply_to(opaque: int, serialization: int, reply: Reply) -> Command:
    """Return the command of a reply: JAVA and our version, which every client takes."""
    fields = {} if reply.header is None else fields_of(reply.header)
    return Command(reply.code, 1, opaque, 0, VERSION, reply.remark, fields, reply.body, serialization)
