"""Answers to sends: what the senders of stored messages are told, and what those of refused ones. Waits for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from halfmoon.broker.request import Reply, Request, reply_to
from halfmoon.errors import BrokerError
from halfmoon.hot import ALL, Messages, send_answers
from halfmoon.wire.codes import VERSION
from halfmoon.wire.command import encode
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.peer import Peers
from halfmoon.wire.table import Header


class Stored(msgspec.Struct, gc=False):
    """Messages of one queue that one append stored, and what their senders are told of it."""

    messages: Messages
    queue_id: int
    queue_offset: int
    header: Header | None = None
    """What the only sender is told, where that is more than where the message lies."""


class Acks:
    """The answers. ``which`` are the senders that are answered: all, those at once, those once it is durable."""

    def __init__(self, peers: Peers, region: str, host_hex: str) -> None:
        self._peers, self._region, self._host_hex = peers, region, host_hex

    def answer(self, stored: Sequence[Stored], which: int = ALL) -> None:
        """Answer senders with success."""
        plain = [(one.messages, one.queue_id, one.queue_offset) for one in stored if one.header is None]
        self._peers.tell(send_answers(plain, which, self._region, self._host_hex, VERSION))
        if len(plain) < len(stored):
            for one in stored:
                if one.header is not None:
                    self.answer_with(one, 0, which)

    def answer_with(self, stored: Stored, code: int, which: int) -> None:
        """Answer senders with where their messages lie, and a code."""
        found, at, places = [], 0, stored.messages.places
        for peer, opaque, serialization, how, count in stored.messages.senders:
            if how & which:
                told = stored.header or self.told(stored.queue_id, stored.queue_offset + at, places[at : at + count])
                found.append((peer, encode(reply_to(opaque, serialization, Reply(code, None, told)))))
            at += count
        self._peers.tell(found)

    def told(self, queue_id: int, queue_offset: int, places: list[int], recall_handle: str | None = None) -> SendMessageReply:
        """Return what the sender of messages at these places is told; of a batch the ids of all, joined by commas."""
        return SendMessageReply(
            msg_id=",".join(f"{self._host_hex}{place:016X}" for place in places), queue_id=queue_id, queue_offset=queue_offset,
            region_id=self._region, trace_on=True, recall_handle=recall_handle,
        )  # fmt: skip

    def refuse(self, messages: Messages, refusal: BrokerError, which: int = ALL) -> None:
        """Answer senders with a refusal's code and text."""
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
