"""Request-reply: a consumer's reply is pushed to the producer that asked, and stored.

Follows ReplyMessageProcessor (RocketMQ 4.9.8).
Differs: a reply that is refused by the gate, for its topic or size say, is not pushed; one that was pushed and cannot be stored is
refused, where the original only logs that.
"""

from __future__ import annotations

from halfmoon.broker.context import Context
from halfmoon.broker.relay import Relay
from halfmoon.broker.request import Handlers, Reply, Request, refusal_of
from halfmoon.broker.send.gate import Gate
from halfmoon.broker.send.sends import SendHeaderOf, Sends
from halfmoon.broker.service import Service
from halfmoon.errors import BrokerError
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.headers.send import (
    PushReplyMessageToClient,
    SendMessage,
    SendMessageReply,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)
from halfmoon.wire.table import request_type

LONG_NAMES = request_type(SendReplyMessage).code
STORED_AS = {
    LONG_NAMES: request_type(SendMessage).code, request_type(SendReplyMessageV2).code: request_type(SendMessageV2).code,
}  # fmt: skip
"""Request code of a reply -> the code by which the gate stores it."""
ONEWAY = 2


class ReplyMessages(Service):
    """The service that answers 324 and 325, and sends 326."""

    def __init__(self, context: Context, gate: Gate, sends: Sends, relay: Relay) -> None:
        settings = context.settings
        self._clients, self._gate, self._sends, self._relay = context.clients, gate, sends, relay
        self._stores, self._region, self._trace_on = settings.store_replies, settings.region, settings.trace_on
        self._store_host = f"{settings.address}:{settings.port}"
        self._pending_replies = context.pending_replies

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            SendReplyMessage: self.reply,
            SendReplyMessageV2: self.reply,
        }

    def reply(self, request: Request) -> None:
        """Push a reply to the producer that property REPLY_TO_CLIENT names; once its client has it, store and answer it.

        What cannot be pushed is stored all the same, so that it can be looked for, and refused with code 1.
        """
        try:
            long_names = request.command.code == LONG_NAMES
            header = request.header(SendReplyMessage) if long_names else request.header(SendReplyMessageV2)
            self._gate.check(request, header)
            self._push(request, header, wire_properties.decode((header.properties or "").encode()))
        except BrokerError as exc:
            self._sends.replies.refuse_one(request, exc)

    def _push(self, request: Request, header: SendHeaderOf, properties: dict[str, str]) -> None:
        asker = properties.get("REPLY_TO_CLIENT")
        if asker is None:
            self._not_pushed(request, "reply message properties[REPLY_TO_CLIENT] is null")
            return
        member = self._clients.producer_by_id(asker)
        if member is None:
            self._not_pushed(request, f"push reply message fail, channel of <{asker}> not found.")
            return

        def answered(reply: Reply) -> None:
            if reply.code:
                self._not_pushed(request, f"push reply message to {asker}fail.")
            else:
                self._pushed(request)

        pushed = self._pushed_header(request, header, properties)
        # What is not pushed is stored, also where who replied does not wait for that.
        self._relay.ask(request, member, pushed, bytes(request.command.body), answered, outlives=True)

    def _pushed_header(self, request: Request, header: SendHeaderOf, properties: dict[str, str]) -> PushReplyMessageToClient:
        properties = properties | {"PUSH_REPLY_TIME": str(request.now.date)}
        return PushReplyMessageToClient(
            producer_group=header.producer_group or "", topic=header.topic, default_topic=header.default_topic or "",
            default_topic_queue_nums=header.default_topic_queue_nums or 0, queue_id=header.queue_id, sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp, flag=header.flag, properties=wire_properties.encode(properties).decode(),
            reconsume_times=header.reconsume_times, unit_mode=header.unit_mode, born_host=request.peer.remote,
            store_host=self._store_host, store_timestamp=request.now.date,
        )  # fmt: skip

    def _pushed(self, request: Request) -> None:
        if self._stores:
            self._store(request)
        else:  # as the original answers where nothing is stored
            header = SendMessageReply(
                msg_id="0", queue_id=0, queue_offset=0, region_id=self._region, trace_on=self._trace_on
            )  # fmt: skip
            self._pending_replies.reply_now(request, Reply(header=header))

    def _not_pushed(self, request: Request, remark: str) -> None:
        self._sends.replies.refuse_one(request, BrokerError(remark))
        if self._stores:
            request.command.flag |= ONEWAY  # it is answered
            self._store(request)

    def _store(self, request: Request) -> None:
        command = request.command
        command.code = STORED_AS[command.code]
        request.now = self._pending_replies.now  # its client took its time, and records of the log are stored in the order of time
        try:
            self._gate.send(request)
        except Exception as exc:  # our own mistake: the client whose answer brought us here does not feel it
            self._sends.replies.refuse_one(request, refusal_of(exc, f"a reply of {request.peer.remote}"))
