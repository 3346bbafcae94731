"""Sends that are stored and wait for their answer until the log is durable (sync flush). Never waits itself.

One entry a group and turn, in the order of the log, so that one completion ("durable up to X") answers all it covers.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from halfmoon.broker.request import Reply
from halfmoon.errors import BrokerError, ResponseCode, ServiceNotAvailable
from halfmoon.hot import batch_answer, batch_answer_form, send_answer, send_answer_form
from halfmoon.wire.codes import VERSION
from halfmoon.wire.command import Command, encode
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.peer import Peer, Peers
from halfmoon.wire.table import Header, fields_of

Sender = tuple[Peer, int, int]
"""peer, opaque, serialisation"""


class Stored(msgspec.Struct, gc=False):
    """Messages of one queue that one append stored: for whom, and where they went. A batch has one sender and many places."""

    senders: list[Sender]
    queue_id: int
    queue_offset: int
    physical_offsets: list[int]
    end_offset: int
    batch: bool = False
    deadline_ms: int = 0
    recall_handle: str = ""
    """Tells the sender of a message for a point in time how to recall it."""
    other: Header | None = None
    """The header of the answer, where the request was no send."""


class Acks:
    """Answers to sends: at once, or once the log is durable."""

    def __init__(self, peers: Peers, region: str, host_hex: str) -> None:
        self._peers, self._region, self._host_hex = peers, region, host_hex
        self._forms: dict[tuple[int, int], Any] = {}
        self._batch_forms: dict[tuple[int, int], Any] = {}
        self._waiting: deque[Stored] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def answer(self, stored: Stored) -> None:
        """Answer every sender with success."""
        if stored.batch:
            self._answer_batch(stored)
            return
        if stored.recall_handle or stored.other is not None:
            self._answer_plainly(stored, 0)
            return
        answer, forms, queue_id = self._peers.answer, self._forms, stored.queue_id
        offset = stored.queue_offset
        for (peer, opaque, serialization), physical_offset in zip(stored.senders, stored.physical_offsets):
            form = forms.get((queue_id, serialization))
            if form is None:
                form = forms[queue_id, serialization] = send_answer_form(
                    self._region, self._host_hex, "JAVA", VERSION, queue_id, serialization
                )
            answer(peer, send_answer(form, physical_offset, offset, opaque, VERSION))
            offset += 1

    def _answer_batch(self, stored: Stored) -> None:
        ((peer, opaque, serialization),) = stored.senders
        key = (stored.queue_id, serialization)
        form = self._batch_forms.get(key)
        if form is None:
            form = self._batch_forms[key] = batch_answer_form(self._region, "JAVA", VERSION, *key)
        places = stored.physical_offsets
        self._peers.answer(peer, batch_answer(form, self._host_hex, places, stored.queue_offset, opaque, VERSION))

    def wait(self, stored: Stored) -> None:
        """Keep the answers until `durable` covers them or their deadline passes."""
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
            for sender in stored.senders:
                self.refuse(sender, ServiceNotAvailable(reason))

    def refuse(self, sender: Sender, refusal: BrokerError) -> None:
        """Answer one sender with a refusal's code and text; region and trace switch are told as with every answer to a send."""
        peer, opaque, serialization = sender
        command = reply_to(opaque, serialization, Reply(refusal.code, refusal.remark))
        command.fields = {"MSG_REGION": self._region, "TRACE_ON": "true"}
        self._peers.answer(peer, encode(command))

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

    def reply(self, stored: Stored, index: int, code: int = 0) -> Reply:
        """Return the answer to one sender as a value; for a batch the ids of all messages, joined by commas."""
        if stored.other is not None:
            return Reply(code, None, stored.other)
        places = stored.physical_offsets if stored.batch else stored.physical_offsets[index : index + 1]
        msg_id = ",".join(f"{self._host_hex}{place:016X}" for place in places)
        header = SendMessageReply(
            msg_id=msg_id, queue_id=stored.queue_id, queue_offset=stored.queue_offset + index,
            region_id=self._region, trace_on=True, recall_handle=stored.recall_handle or None,
        )  # fmt: skip
        return Reply(code, None, header)

    def _answer_plainly(self, stored: Stored, code: int) -> None:
        for index, (peer, opaque, serialization) in enumerate(stored.senders):
            reply = self.reply(stored, index, code)
            self._peers.answer(peer, encode(reply_to(opaque, serialization, reply)))


def reply_to(opaque: int, serialization: int, reply: Reply) -> Command:
    """Return the command of a reply: JAVA and our version, which every client takes."""
    fields = {} if reply.header is None else fields_of(reply.header)
    return Command(reply.code, 1, opaque, 0, VERSION, reply.remark, fields, reply.body, serialization)
