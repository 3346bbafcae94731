"""Replies to sends: where messages are stored, or why they are refused. Waits for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from halfmoon.broker.request import Reply, Request, reply_to
from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import BrokerError
from halfmoon.hot import ALL, Messages, send_answers
from halfmoon.wire.codes import VERSION
from halfmoon.wire.command import encode
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.peer import Peers
from halfmoon.wire.table import Header


class StoredGroup(msgspec.Struct, gc=False):
    """Messages of one queue that one append stored, and the reply to their senders."""

    messages: Messages
    queue_id: int
    queue_offset: int
    header: Header | None = None
    """The reply header of a single sender, if it says more than where the message is stored."""


class SendReplies:
    """Encodes replies. ``which`` selects senders: all, those that want a reply at once, or once the log is durable."""

    def __init__(self, peers: Peers, settings: BrokerSettings, host_hex: str) -> None:
        self._peers, self._region, self._trace_on, self._host_hex = peers, settings.region, settings.trace_on, host_hex

    def answer(self, stored: Sequence[StoredGroup], which: int = ALL) -> None:
        """Reply with success."""
        ordinary = [(group.messages, group.queue_id, group.queue_offset) for group in stored if group.header is None]
        self._peers.tell(send_answers(ordinary, which, self._region, self._host_hex, VERSION, trace_on=self._trace_on))
        if len(ordinary) < len(stored):
            for group in stored:
                if group.header is not None:
                    self.answer_with(group, 0, which)

    def answer_with(self, stored: StoredGroup, code: int, which: int) -> None:
        """Reply with where the messages are stored, and a code."""
        frames, at, places = [], 0, stored.messages.places
        for peer, opaque, serialization, how, count in stored.messages.senders:
            if how & which:
                header = stored.header or self.header(stored.queue_id, stored.queue_offset + at, places[at : at + count])
                frames.append((peer, encode(reply_to(opaque, serialization, Reply(code, None, header)))))
            at += count
        self._peers.tell(frames)

    def header(self, queue_id: int, queue_offset: int, places: list[int], recall_handle: str | None = None) -> SendMessageReply:
        """Return the reply header for messages at these physical offsets; the ids of a batch are joined by commas."""
        return SendMessageReply(
            msg_id=",".join(f"{self._host_hex}{place:016X}" for place in places), queue_id=queue_id, queue_offset=queue_offset,
            region_id=self._region, trace_on=self._trace_on, recall_handle=recall_handle,
        )  # fmt: skip

    def refuse(self, messages: Messages, refusal: BrokerError, which: int = ALL) -> None:
        """Reply with the code and remark of a refusal."""
        frames = [(peer, self._refusal(opaque, kind, refusal)) for peer, opaque, kind, how, _ in messages.senders if how & which]
        self._peers.tell(frames)
        self._peers.refused(refusal.code, len(frames))

    def refuse_one(self, request: Request, refusal: BrokerError) -> None:
        """Reply to one request with a refusal, unless it is one-way."""
        command = request.command
        if not command.is_oneway:
            self._peers.refuse(request.peer, self._refusal(command.opaque, command.serialization, refusal), refusal.code)

    def _refusal(self, opaque: int, serialization: int, refusal: BrokerError) -> bytes:
        """Return the frame of a refusal, with region and trace switch as in every reply to a send."""
        command = reply_to(opaque, serialization, Reply(refusal.code, refusal.remark))
        command.fields = {"MSG_REGION": self._region, "TRACE_ON": "true" if self._trace_on else "false"}
        return encode(command)
