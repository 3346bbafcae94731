"""Delayed messages: cancelling one, and listing those of all brokers."""

from __future__ import annotations

from heapq import merge

import msgspec

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.transactions import Master, masters
from halfmoon.client.core.ask import ask
from halfmoon.client.core.names import unwrap, wrap
from halfmoon.client.core.produce.send import Sender
from halfmoon.effects import Op, gather
from halfmoon.errors import BrokerError, IllegalOperation, NetworkError, TopicNotFound, UsageError
from halfmoon.wire.bodies import DelayedMessage, DelayedMessages, from_json
from halfmoon.wire.bodies.delays import parse_recall_handle, recall_handle
from halfmoon.wire.headers.delay import ListDelayedMessages, RecallMessage, RecallMessageReply

PAGE_MAX = 1000
"""Most messages of one answer."""


class DelayedAt(DelayedMessage):
    """A message that waits, and at which broker."""

    broker: str = ""


class DelayedList(msgspec.Struct):
    """Delayed messages, the next first, and how many wait in all, by level; 0: for a point in time."""

    messages: list[DelayedAt]
    by_level: dict[int, int]
    now_ms: int


def recall(sender: Sender, topic: str, handle: str) -> Op[str]:
    """Cancel a message by the handle of its send; return its id. Raises UsageError, IllegalOperation, BrokerError, NetworkError."""
    parsed = parse_recall_handle(handle)
    if parsed is None:
        raise UsageError("not a recall handle: the result of a send with delay or deliver_at has one")
    address = yield from sender.broker_address(topic, parsed.broker_name)
    request = RecallMessage(
        producer_group=sender.group, topic=wrap(topic, sender.settings.namespace), recall_handle=handle
    )  # fmt: skip
    reply = yield from ask(address, request, timeout_ms=sender.settings.send_timeout_ms)
    return reply.header(RecallMessageReply).msg_id


def delayed_messages(admin: AdminCore, *, topic: str | None = None, count_max: int = 100) -> Op[DelayedList]:
    """Return delayed messages of all Halfmoon brokers, the next to be delivered first, and how many wait in all.

    Raises the error of any broker, such as RequestNotSupported from one that keeps no such list.
    """
    wanted = None if topic is None else wrap(topic, admin.settings.namespace)
    lists = yield from gather([_listed(admin, master, wanted, count_max) for master in (yield from masters(admin))])
    by_level: dict[int, int] = {}
    by_broker: list[list[DelayedAt]] = []
    now_ms = 0
    for outcome in lists:
        if isinstance(outcome, Exception):
            raise outcome
        by_broker.append(outcome.messages)
        now_ms = max(now_ms, outcome.now_ms)
        for level, count in outcome.by_level.items():
            by_level[level] = by_level.get(level, 0) + count
    messages = list(merge(*by_broker, key=lambda message: message.due_ms))[:count_max]
    return DelayedList(messages, by_level, now_ms)


def _listed(admin: AdminCore, broker: Master, topic: str | None, count_max: int) -> Op[DelayedList]:
    listed = DelayedList([], {}, 0)
    request = ListDelayedMessages(topic=topic, count=min(PAGE_MAX, count_max))
    while True:
        reply = yield from ask(broker.address, request, timeout_ms=admin.settings.request_timeout_ms)
        page = from_json(DelayedMessages, reply.body)
        listed.by_level, listed.now_ms = page.by_level, page.now_ms
        for message in page.messages:
            facts = msgspec.structs.asdict(message)
            listed.messages.append(
                DelayedAt(**{**facts, "topic": unwrap(message.topic, admin.settings.namespace), "broker": broker.name})
            )
        before, after = (
            (request.after_ms, request.after_level, request.after_offset), (page.last_ms, page.last_level, page.last_offset),
        )  # fmt: skip
        if not page.more or after <= before or len(listed.messages) >= count_max:
            break
        request = msgspec.structs.replace(request, after_ms=after[0], after_level=after[1], after_offset=after[2])
    listed.messages.sort(key=lambda message: message.due_ms)
    return listed


def cancel_delayed(admin: AdminCore, topic: str, name: str) -> Op[str]:
    """Cancel a message that waits for a point in time, by its handle or its sender's id, at whichever broker has it; return its id.

    A message that waits on a level cannot be cancelled. Raises IllegalOperation when no broker has such a message (any more),
    BrokerError or NetworkError when a broker could not say.
    """
    parsed = parse_recall_handle(name)
    wrapped = wrap(topic, admin.settings.namespace)
    refusal: BrokerError | NetworkError = IllegalOperation("no broker has such a message")
    for master in (yield from masters(admin)):
        if parsed is not None and parsed.broker_name != master.name:
            continue
        handle = name if parsed is not None else recall_handle(wrapped, master.name, 0, name)
        try:
            request = RecallMessage(producer_group="TOOLS", topic=wrapped, recall_handle=handle)
            reply = yield from ask(master.address, request, timeout_ms=admin.settings.request_timeout_ms)
        except (BrokerError, NetworkError) as exc:
            if isinstance(refusal, IllegalOperation) and not isinstance(exc, TopicNotFound):
                refusal = exc  # that a broker could not be asked tells more than that another one has no such message
            continue
        return reply.header(RecallMessageReply).msg_id
    raise refusal
