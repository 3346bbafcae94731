"""Request-reply: messages whose sender waits for what a consumer replies, and the replies.

A request is an ordinary message that carries the asker's client id; the reply is a message to ``<cluster>_REPLY_TOPIC``, which a
broker pushes to the connection of that client.

Follows DefaultMQProducerImpl.request, ClientRemotingProcessor.receiveReplyMessage and MessageUtil (RocketMQ 4.9.8).
Differs: before the first request to a broker that has not heard of us, a heartbeat is waited for, so that no reply comes too early;
at most half of the request's time.
"""

from __future__ import annotations

import logging
from typing import Unpack

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.produce.send import Chosen, Sender
from halfmoon.effects import Op, Signal, now, steady, wait
from halfmoon.errors import BadMessage, RequestTimeout, TooManyRequests, UsageError
from halfmoon.model import Message, SendResult, StoredMessage
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.codes import COMPRESSED, Language
from halfmoon.wire.command import Command, reply_command
from halfmoon.wire.compression import decompress
from halfmoon.wire.headers.send import PushReplyMessageToClient
from halfmoon.wire.table import request_type

WAITING_MAX = 50_000
"""Requests of one producer that wait for replies; one more is refused."""

CORRELATION_ID, REPLY_TO_CLIENT, TTL, MSG_TYPE, CLUSTER = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "CLUSTER"

log = logging.getLogger("halfmoon.client")


class _Waiting:
    """A request whose reply is not there yet."""

    def __init__(self) -> None:
        self.arrived = Signal()
        self.reply: StoredMessage | None = None


class Requests:
    """The requests of one producer, and its replies to those of others."""

    def __init__(self, sender: Sender, instance: Instance) -> None:
        self._sender, self._instance = sender, instance
        self._waiting: dict[str, _Waiting] = {}
        instance.on_asked[request_type(PushReplyMessageToClient).code] = self._arrived

    def request(self, message: Message, **chosen: Unpack[Chosen]) -> Op[StoredMessage]:
        """Send a message and return the reply, within ``timeout_ms`` in all.

        Raises RequestTimeout when it was sent and no reply came, TooManyRequests, and what `Sender.send` raises.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise TooManyRequests(f"{WAITING_MAX} requests wait for replies")
        correlation_id, waiting = f"{self._instance.random.getrandbits(128):032x}", _Waiting()
        self._waiting[correlation_id] = waiting
        try:
            return (yield from self._request(message, chosen, correlation_id, waiting))
        finally:  # also where the caller stops half-way
            del self._waiting[correlation_id]

    def _request(self, message: Message, chosen: Chosen, correlation_id: str, waiting: _Waiting) -> Op[StoredMessage]:
        sender, budget_ms = self._sender, self._sender.budget(chosen.get("timeout_ms"))
        begin = yield from steady()
        sender.check(message)
        target = yield from sender.target(message, chosen.get("queue"), chosen.get("selector"), chosen.get("key"))
        asked = {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: self._instance.client_id, TTL: str(budget_ms)}
        outgoing = yield from sender.prepare(message, (yield from now()), asked)
        yield from sender.publish_info(outgoing.topic, budget_ms)
        yield from self._be_known(max(0, budget_ms - ((yield from steady()) - begin)) // 2)
        if target is not None:
            yield from sender.send_to(outgoing, target, begin, budget_ms)
        else:
            yield from sender.deliver(outgoing, begin, budget_ms)
        if waiting.reply is None:
            left_ms = budget_ms - ((yield from steady()) - begin)
            yield from wait(waiting.arrived, max(0, left_ms))
        if waiting.reply is None:
            raise RequestTimeout(f"the request was sent to topic {message.topic}, but no reply came within {budget_ms} ms")
        return waiting.reply

    def _be_known(self, timeout_ms: int) -> Op[None]:
        """Let every broker know us that may have to push a reply: whoever replies chooses one of them.

        One that cannot be reached is waited for once, not by every request.
        """
        instance, begin = self._instance, (yield from steady())
        for _ in range(2):  # heartbeats that others wait for may have begun before a broker was known
            if all(instance.tried(address) for _, _, address in instance.routes.addresses(masters_only=True)):
                return
            yield from instance.greet(max(0, timeout_ms - ((yield from steady()) - begin)))

    def _arrived(self, address: str, command: Command) -> Command:
        header = command.header(PushReplyMessageToClient)
        properties = wire_properties.decode((header.properties or "").encode())
        waiting = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if waiting is None:  # nobody waits any more; the broker need not try again
            log.info("late reply: broker=%s from=%s", address, header.born_host)
            return reply_command(command, 0, None, language=int(Language.PYTHON))
        try:
            body = decompress(bytes(command.body), header.sys_flag)
        except (BadMessage, UsageError) as exc:
            log.warning("reply does not decode: broker=%s topic=%s reason=%s", address, header.topic, exc)
            return reply_command(command, 1, f"process reply message fail: {exc}", language=int(Language.PYTHON))
        waiting.reply = StoredMessage(
            header.topic, header.queue_id, -1, -1, body, properties, header.flag, header.sys_flag & ~COMPRESSED,
            header.born_timestamp, header.born_host, header.store_timestamp, header.store_host, header.reconsume_times or 0,
            0, 0, len(body), "",
        )  # fmt: skip
        waiting.arrived.fire()
        return reply_command(command, 0, None, language=int(Language.PYTHON))

    # ------------------------------------------------------------ replying

    def reply(self, request: StoredMessage, body: bytes, timeout_ms: int | None) -> Op[SendResult]:
        """Reply to a request that a consumer was given. Raises UsageError if it is none, and what `Sender.send` raises."""
        facts = {name: request.properties.get(name) for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT, TTL)}
        if missing := [name for name, value in facts.items() if value is None and name != TTL]:
            raise UsageError(f"message {request.msg_id} is no request: it has no {' and no '.join(missing)}")
        sender, message = self._sender, Message(f"{facts[CLUSTER]}_REPLY_TOPIC", body)
        begin = yield from steady()
        sender.check(message)
        carried = {name: value for name, value in facts.items() if value is not None and name != CLUSTER}
        outgoing = yield from sender.prepare(message, (yield from now()), {**carried, MSG_TYPE: "reply"})
        outgoing.topic, outgoing.reply = message.topic, True  # the topic is the cluster's, whatever our namespace
        return (yield from sender.deliver(outgoing, begin, sender.budget(timeout_ms)))
