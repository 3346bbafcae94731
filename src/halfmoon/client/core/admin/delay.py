"""Delayed messages: cancelling one, and listing those of all brokers."""

from __future__ import annotations

from heapq import merge
from itertools import islice, takewhile

import msgspec

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.pages import Master, masters
from halfmoon.client.core.admin.transactions import ask_halfmoon
from halfmoon.client.core.ask import ask
from halfmoon.client.core.cursor import Offset, cursor, places
from halfmoon.client.core.names import unwrap, wrap
from halfmoon.client.core.produce.send import Sender
from halfmoon.effects import Op, gather
from halfmoon.errors import (
    BrokerError,
    HalfmoonError,
    IllegalOperation,
    NetworkError,
    RequestNotSupported,
    TopicNotFound,
    UsageError,
)
from halfmoon.wire.bodies import DelayedMessage, DelayedMessages, from_json
from halfmoon.wire.bodies.delays import parse_recall_handle, recall_handle
from halfmoon.wire.headers.delay import ListDelayedMessages, RecallMessage, RecallMessageReply

PAGE_MAX = 1000
"""Most messages of one answer."""

_Place = tuple[Offset, Offset, Offset]
"""Behind which message of a broker a page goes on: the time that it is looked at, its level, its queue offset."""

ROUNDS_MAX = 40
"""Questions to one broker for one page: each reads some 2,000 messages, or 4 MiB."""


class DelayedAt(DelayedMessage):
    """A message that waits, and at which broker."""

    broker: str = ""


class DelayedList(msgspec.Struct):
    """Delayed messages, the next first, and how many wait in all, by level; 0: for a point in time."""

    messages: list[DelayedAt]
    by_level: dict[int, int]
    now_ms: int


class DelayedPage(msgspec.Struct):
    """Some delayed messages. ``next`` is where the next page begins, None at the end; ``short`` says why they are fewer than asked.

    Counts are of all brokers but those in ``not_reported``: by level (0: for a point in time), and, on the first page, how many are
    due within so many seconds.
    """

    messages: list[DelayedAt] = []
    by_level: dict[int, int] = {}
    due_within: dict[int, int] = {}
    now_ms: int = 0
    next: str | None = None
    short: str = ""
    not_reported: list[str] = []


def recall(sender: Sender, topic: str, handle: str) -> Op[str]:
    """Cancel a message by the handle of its send; return its id. Raises UsageError, IllegalOperation, BrokerError, NetworkError."""
    parsed = parse_recall_handle(handle) if isinstance(handle, str) else None
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


def delayed_page(admin: AdminCore, *, topic: str | None = None, after: str = "", count_max: int = 100) -> Op[DelayedPage]:
    """Return delayed messages of all brokers, the next to be delivered first; ``after`` is `next` of a page before.

    What waits longer than two days may be on an earlier page: its brokers list it when they store it anew. A broker that keeps no
    such list, or does not answer, is in ``not_reported``. Raises UsageError; the error of a broker when none answers.
    """
    known: dict[str, _Place] = places(after, _Place) if after else {}
    page = DelayedPage()
    parts = yield from _parts(admin, page, topic, known, count_max)
    # behind what a broker with more has listed, others may list what is later than what it has not listed yet
    ends = [max([part.last_ms, *(message.look_ms for message in part.messages)]) for part in parts.values() if part.more]
    lists = [[_placed(admin, message, name) for message in part.messages] for name, part in parts.items()]
    merged = merge(*lists, key=lambda message: message.look_ms)  # what is taken of each list is its beginning
    taken = list(islice(takewhile(lambda message: message.look_ms <= min(ends, default=2**63), merged), count_max))
    page.messages = sorted(taken, key=lambda message: message.due_ms)
    for name, part in parts.items():
        page.now_ms = max(page.now_ms, part.now_ms)
        for totals, counts in ((page.by_level, part.by_level), (page.due_within, part.due_within)):
            totals.update({of: totals.get(of, 0) + count for of, count in counts.items()})
        mine = [message for message in taken if message.broker == name]
        if len(mine) == len(part.messages):
            known[name] = (part.last_ms, part.last_level, part.last_offset)
        elif mine:
            known[name] = (mine[-1].look_ms, mine[-1].level, mine[-1].queue_offset)
    if len(taken) < sum(map(len, lists)) or any(part.more for part in parts.values()):
        page.next = cursor(known)
        page.short = "" if len(taken) == count_max else "so many were looked at; others are on the next page"
    return page


def _parts(
    admin: AdminCore, page: DelayedPage, topic: str | None, known: dict[str, _Place], count_max: int
) -> Op[dict[str, DelayedMessages]]:
    """Return what each broker lists, by its name, and note on the page which do not."""
    topic = None if topic is None else wrap(topic, admin.settings.namespace)
    brokers = yield from masters(admin)
    outcomes = yield from gather([_part(admin, broker, topic, known.get(broker.name), count_max) for broker in brokers])
    parts: dict[str, DelayedMessages] = {}
    for broker, outcome in zip(brokers, outcomes):
        if isinstance(outcome, RequestNotSupported):
            page.not_reported.append(f"{broker.name} keeps no list of delayed messages")
        elif isinstance(outcome, HalfmoonError):
            page.not_reported.append(f"{broker.name}: {outcome}")
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            parts[broker.name] = outcome
    failed = [each for each in outcomes if isinstance(each, HalfmoonError) and not isinstance(each, RequestNotSupported)]
    if failed and not parts:
        raise failed[0]
    return parts


def _part(admin: AdminCore, broker: Master, topic: str | None, after: _Place | None, count_max: int) -> Op[DelayedMessages]:
    """Return what one broker lists behind a place: as many as asked for, unless it has no more or was asked `ROUNDS_MAX` times."""
    part = DelayedMessages()
    part.last_ms, part.last_level, part.last_offset = after or (-1, -1, -1)
    for _ in range(ROUNDS_MAX):
        request = ListDelayedMessages(
            topic=topic, count=min(PAGE_MAX, count_max - len(part.messages)), after_ms=part.last_ms,
            after_level=part.last_level, after_offset=part.last_offset,
        )  # fmt: skip
        listed = from_json(DelayedMessages, (yield from ask_halfmoon(admin, broker.address, request)))
        listed.messages, listed.due_within = part.messages + listed.messages, part.due_within or listed.due_within
        part = listed
        if not part.more or len(part.messages) >= count_max:
            break
    return part


def _placed(admin: AdminCore, message: DelayedMessage, broker: str) -> DelayedAt:
    topic = unwrap(message.topic, admin.settings.namespace)
    return DelayedAt(**{**msgspec.structs.asdict(message), "topic": topic, "broker": broker})


def _listed(admin: AdminCore, broker: Master, topic: str | None, count_max: int) -> Op[DelayedList]:
    listed = DelayedList([], {}, 0)
    request = ListDelayedMessages(topic=topic, count=min(PAGE_MAX, count_max))
    while True:
        reply = yield from ask(broker.address, request, timeout_ms=admin.settings.request_timeout_ms)
        page = from_json(DelayedMessages, reply.body)
        listed.by_level, listed.now_ms = page.by_level, page.now_ms
        listed.messages += [_placed(admin, message, broker.name) for message in page.messages]
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
