"""Moving a consumer group to other offsets, whether its members are online or not; and showing first what would happen.

Brokers of Halfmoon take a table of offsets (31010). Of Apache's, 5.x moves queue by queue on its own side (222); 4.x moves a live
group to a time only (222), and a group that sleeps is moved by writing its progress (15), which a live member would overwrite.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import Enum
from typing import NamedTuple

import msgspec

from halfmoon.client.core.admin.admin import AdminCore, masters_of
from halfmoon.client.core.ask import ask, at_each, call
from halfmoon.client.core.names import check_group, check_topic
from halfmoon.client.core.queue_ends import topic_ends
from halfmoon.effects import Op, now
from halfmoon.errors import ConsumerNotOnline, GroupNotFound, OffsetIllegal, RequestNotSupported, UsageError, broker_error
from halfmoon.model import MessageQueue
from halfmoon.results import OffsetMove
from halfmoon.wire.bodies import (
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerStatus,
    ResetOffsetBody,
    SubscriptionGroupTable,
    TopicOffset,
    TopicRouteData,
    from_json,
    to_json,
)
from halfmoon.wire.command import Command
from halfmoon.wire.headers.client import ConsumeMessageDirectly, GetConsumerConnectionList, InvokeBrokerToGetConsumerStatus
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig
from halfmoon.wire.headers.offset import (
    NO_PROGRESS,
    InvokeBrokerToResetOffset,
    MoveGroupOffsets,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.table import Header

EARLIEST, LATEST = "earliest", "latest"
Target = str | int | datetime | Mapping[MessageQueue, int]
"""Where to: ``"earliest"``, ``"latest"``, a time (ms since the epoch, or a datetime with its zone), or an offset for each queue."""

DIRECTLY_TIMEOUT_MS = 12_000
"""A broker waits ten seconds for the consumer."""

AHEAD_MS = 60_000
"""Largest distance of a time in the future, for clocks differ. A later one is a mistake."""


_WireTarget = str | int | Mapping[MessageQueue, int]


class _Method(Enum):
    """How a broker is asked to move a group."""

    TABLE = "Halfmoon: all at once"
    WRITE = "asleep: progress is written"
    QUEUES = "5.x: queue by queue, on its side"
    TIME = "4.x: by time, all queues"


class _Plan(NamedTuple):
    """Offsets to be moved at one broker, and how."""

    address: str
    method: _Method
    moves: list[OffsetMove]


class Reset(NamedTuple):
    """Reset that is planned: the group and topic by their names on the wire, the target, and what each broker is to do."""

    group: str
    topic: str
    target: _WireTarget
    plans: dict[str, _Plan]


def reset_offsets(
    admin: AdminCore, group: str, topic: str, to: Target, *, queues: Collection[MessageQueue] | None = None, dry_run: bool = False
) -> Op[list[OffsetMove]]:
    """Move a group's offsets in a topic, or in some of its queues, whether members are online or not; return the moves by queue.

    ``to``: "earliest", "latest", a time (ms since the epoch or a datetime with its zone), or a table of offsets by queue.
    Everything is checked before the first offset moves; ``dry_run`` changes nothing.

    Raises UsageError for a target that cannot be, OffsetIllegal for an offset that a queue does not have, TopicNotFound,
    GroupNotFound, BrokerError, NetworkError; PartlyDone.
    """
    reset = yield from planned(admin, group, topic, to, queues)
    if not dry_run:
        yield from carry_out(admin, reset)
    return moves_of(admin, reset)


def planned(admin: AdminCore, group: str, topic: str, to: Target, queues: Collection[MessageQueue] | None = None) -> Op[Reset]:
    """Return what `reset_offsets` would do, all of it checked. Changes nothing."""
    check_topic(topic)
    check_group(group)
    target = yield from _checked(admin, to)
    wanted = _wanted(admin, target, queues)
    plans, route = {}, (yield from admin.topic_route(topic))
    named = None if wanted is None else {queue.broker_name for queue in wanted}
    for name, address in masters_of(admin.wire(topic), route).items():
        if named is not None and name not in named:
            continue
        plans[name] = yield from _plan(admin, route, address, admin.wire(group), admin.wire(topic), target, wanted)
    if unknown := (wanted or set()) - {move.queue for plan in plans.values() for move in plan.moves}:
        raise UsageError(f"topic {topic} has no queue {', '.join(f'{q.broker_name}/{q.queue_id}' for q in sorted(unknown))}")
    return Reset(admin.wire(group), admin.wire(topic), target, plans)


def carry_out(admin: AdminCore, reset: Reset, *, unmoved: bool = False) -> Op[None]:
    """Move a group as planned. With ``unmoved``, for one queue, a Halfmoon broker refuses (604) where its progress is another now.

    Raises IllegalOperation, BrokerError, NetworkError, PartlyDone.
    """
    plans = {name: plan for name, plan in reset.plans.items() if plan.moves}
    yield from at_each({name: _carry_out(admin, plan, reset, unmoved=unmoved) for name, plan in plans.items()})


def moves_of(admin: AdminCore, reset: Reset) -> list[OffsetMove]:
    """Return the moves of a reset, by the user's queue."""
    moves = [move for plan in reset.plans.values() for move in plan.moves]
    named = [msgspec.structs.replace(move, queue=admin.user_queue(move.queue)) for move in moves]
    return sorted(named, key=lambda move: move.queue)


def _wanted(admin: AdminCore, target: _WireTarget, queues: Collection[MessageQueue] | None) -> set[MessageQueue] | None:
    """Return which queues are to move, by their names on the wire; None for all."""
    wanted = None if queues is None else {admin.wire_queue(queue) for queue in queues}
    if isinstance(target, Mapping):
        wanted = set(target) if wanted is None else wanted & target.keys()
    return wanted


def _checked(admin: AdminCore, to: Target) -> Op[_WireTarget]:
    """Return a target with times as ms since the epoch, and queues as the wire calls them. Raises UsageError."""
    if isinstance(to, Mapping):
        return {admin.wire_queue(queue): offset for queue, offset in to.items()}
    if isinstance(to, str):
        if to not in (EARLIEST, LATEST):
            raise UsageError(f"to: expected {EARLIEST!r}, {LATEST!r}, a time or a table of offsets, got {to!r}")
        return to
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise UsageError(f"to: {to} has no time zone")
        to = int(to.timestamp() * 1000)
    if isinstance(to, bool) or not isinstance(to, int):
        raise UsageError(f"to: expected {EARLIEST!r}, {LATEST!r}, a time or a table of offsets, got {to!r}")
    latest = (yield from now()) + AHEAD_MS
    if not 0 <= to <= latest:
        raise UsageError(f"to: {to} ms is {'before the epoch' if to < 0 else 'in the future'}")
    return to


# ---------------------------------------------------------------- what would happen


def _plan(
    admin: AdminCore, route: TopicRouteData, address: str, group: str, topic: str, to: _WireTarget,
    wanted: set[MessageQueue] | None,
) -> Op[_Plan]:  # fmt: skip
    ends = yield from topic_ends(route, address, topic, admin.settings.request_timeout_ms)
    chosen = [queue for queue in sorted(ends) if wanted is None or queue in wanted]
    members = yield from _members(admin, address, group)
    all_queues = wanted is None and not isinstance(to, Mapping)
    method = (yield from _method(admin, address, group, topic, members, all_queues=all_queues)) if chosen else _Method.WRITE
    moves = []
    for queue in chosen:
        question = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue.queue_id, set_zero_if_not_found=False)
        progress = yield from call(address, question, b"", admin.settings.request_timeout_ms)
        if progress.code not in (0, 22):
            raise broker_error(progress.code, progress.remark, address)
        known = progress.header(OffsetReply).offset if progress.code == 0 else None
        then = yield from _then(admin, address, queue, to, ends[queue])
        moves.append(OffsetMove(queue, known, then, members))
    return _Plan(address, method, moves)


def _then(admin: AdminCore, address: str, queue: MessageQueue, to: _WireTarget, end: TopicOffset) -> Op[int]:
    low, high = max(0, end.min_offset), max(0, end.max_offset)
    if to == EARLIEST:
        return low
    if to == LATEST:
        return high
    if isinstance(to, Mapping):
        offset = to[queue]
        if isinstance(offset, bool) or not isinstance(offset, int) or not low <= offset <= high:
            where = f"{queue.broker_name}/{queue.queue_id}"
            raise OffsetIllegal(f"offset {offset!r} is outside queue {where} of topic {queue.topic}, which has {low} to {high}")
        return offset
    assert isinstance(to, int)
    request = SearchOffsetByTimestamp(topic=queue.topic, queue_id=queue.queue_id, timestamp=to)
    reply = yield from _asked(admin, address, request)
    offset = min(max(reply.header(OffsetReply).offset, low), high)
    newest = offset == high - 1 and 0 < end.last_update_timestamp < to  # the answer of 4.x, and of ours, to a time after it
    return high if newest else offset


def _members(admin: AdminCore, address: str, group: str) -> Op[int]:
    try:
        reply = yield from _asked(admin, address, GetConsumerConnectionList(consumer_group=group))
    except ConsumerNotOnline:
        return 0
    return len(from_json(ConsumerConnection, reply.body).connection_set)


def _method(admin: AdminCore, address: str, group: str, topic: str, members: int, *, all_queues: bool) -> Op[_Method]:
    """Return how a broker is asked. An empty table of offsets changes nothing, and shows whether the broker is a Halfmoon one."""
    try:
        yield from _asked(admin, address, MoveGroupOffsets(topic=topic, group=group), to_json(ResetOffsetBody()))
        return _Method.TABLE
    except RequestNotSupported:
        pass
    if not members:
        known = from_json(SubscriptionGroupTable, (yield from _asked(admin, address, GetAllSubscriptiongroupConfig())).body)
        if group not in known.subscription_group_table:
            raise GroupNotFound(f"consumer group[{group}] not exist", address)
        return _Method.WRITE
    settings = yield from admin.broker_config(address)
    if settings.get("useServerSideResetOffset") == "true":
        return _Method.QUEUES
    if not all_queues:
        raise UsageError(
            f"the broker at {address} moves a group with members online to a time only, and in all queues at once: "
            f"stop the members, or give a time"
        )
    return _Method.TIME


# ---------------------------------------------------------------- what happens


def _carry_out(admin: AdminCore, plan: _Plan, reset: Reset, *, unmoved: bool) -> Op[None]:
    address, method, moves = plan
    group, topic, to, _ = reset
    if method is _Method.TABLE:
        table = ResetOffsetBody({move.queue: move.then for move in moves})
        now = (NO_PROGRESS if moves[0].now is None else moves[0].now) if unmoved else None
        yield from _asked(admin, address, MoveGroupOffsets(topic=topic, group=group, unmoved_from=now), to_json(table))
    elif method is _Method.TIME:
        timestamp = -1 if to == LATEST else 0 if to == EARLIEST else to
        assert isinstance(timestamp, int)
        by_time = InvokeBrokerToResetOffset(topic=topic, group=group, timestamp=timestamp, is_force=True)
        yield from _asked(admin, address, by_time)
    for move in moves if method in (_Method.WRITE, _Method.QUEUES) else ():
        request: Header = UpdateConsumerOffset(
            consumer_group=group, topic=topic, queue_id=move.queue.queue_id, commit_offset=move.then
        )
        if method is _Method.QUEUES:
            request = InvokeBrokerToResetOffset(
                topic=topic, group=group, timestamp=0, is_force=True, queue_id=move.queue.queue_id, offset=move.then
            )
        yield from _asked(admin, address, request)


def _asked(admin: AdminCore, address: str, request: Header, body: bytes = b"") -> Op[Command]:
    return (yield from ask(address, request, body, admin.settings.request_timeout_ms))


# ---------------------------------------------------------------- asked of members


def consumer_offsets(admin: AdminCore, group: str, topic: str) -> Op[dict[str, dict[MessageQueue, int]]]:
    """Ask the online members of a group for their offsets in a topic; return them by client id. Leaves out who does not answer."""
    check_topic(topic)
    request = InvokeBrokerToGetConsumerStatus(topic=admin.wire(topic), group=admin.wire(group))
    by_client: dict[str, dict[MessageQueue, int]] = {}
    for address in (yield from admin.masters_of(topic)).values():
        if (yield from _members(admin, address, admin.wire(group))):
            reply = yield from _asked(admin, address, request)
            for client_id, offsets in from_json(ConsumerStatus, reply.body).consumer_table.items():
                by_client.setdefault(client_id, {}).update({admin.user_queue(queue): offset for queue, offset in offsets.items()})
    return by_client


def consume_directly(admin: AdminCore, group: str, client_id: str, offset_msg_id: str) -> Op[ConsumeDirectlyResult]:
    """Have one online push consumer consume one message now; its progress stays as it is.

    ``offset_msg_id`` is the broker's id. Raises UsageError, BrokerError, NetworkError.
    """
    address = parse_offset_msg_id(offset_msg_id).address
    request = ConsumeMessageDirectly(consumer_group=admin.wire(group), client_id=client_id, msg_id=offset_msg_id)
    reply = yield from ask(address, request, b"", DIRECTLY_TIMEOUT_MS)
    return from_json(ConsumeDirectlyResult, reply.body)
