"""Health of one consumer group: its brokers and members are asked, and findings follow from what they report."""

from __future__ import annotations

from typing import Any

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.health.findings import GroupFacts, findings, started_ms, subscriptions
from halfmoon.client.core.names import DLQ_PREFIX
from halfmoon.effects import Op, gather, now
from halfmoon.errors import ConsumerNotOnline, GroupNotFound, HalfmoonError, TopicNotFound
from halfmoon.results import Finding, GroupHealth, GroupMember, QueueProgress
from halfmoon.wire.codes import Perm, version_name

MEMBERS_MAX, BRIEF_MEMBERS_MAX, BRIEF_WAIT_MS = 100, 4, 1_000
"""Members of a group that are asked for their state; fewer for one row of a list, each for so long."""


def group_findings(admin: AdminCore, group: str) -> Op[list[Finding]]:
    """Return what needs attention in a group, the most severe first. Raises GroupNotFound, NetworkError."""
    return (yield from group_health(admin, group)).findings


def group_health(admin: AdminCore, group: str, *, brief: bool = False) -> Op[GroupHealth]:
    """Return members and progress of a group, and what needs attention. Raises GroupNotFound, NetworkError.

    With ``brief``, for a list of groups, only the first members are asked, of a group that is behind, and neither for permissions
    nor for dead letters. A group that no broker knows is then empty.
    """
    at_ms = yield from now()
    known = GroupFacts(group=group)
    if not brief:
        yield from _look_closer(admin, known)
    asked = yield from _ask(admin, known, brief=brief)
    if not brief:
        yield from _unreadable(admin, known)
    return _health(known, asked, at_ms)


def _ask(admin: AdminCore, known: GroupFacts, *, brief: bool) -> Op[int]:
    """Ask brokers for a group, and its members for their state. Return how many members were asked."""
    try:
        online = yield from admin.consumer_connections(known.group)
        known.connections = {member.client_id: member for member in online.connection_set}
        known.members = list(known.connections)
        known.model = "" if online.message_model is None else online.message_model.name.lower()
    except ConsumerNotOnline:
        pass
    try:
        known.queues = yield from admin.consume_stats(known.group)
    except (TopicNotFound, ConsumerNotOnline):
        pass
    if brief and not known.lag():
        return 0
    members = known.members[: BRIEF_MEMBERS_MAX if brief else MEMBERS_MAX]
    wait_ms = BRIEF_WAIT_MS if brief else None
    outcomes = yield from gather([admin.consumer_running_info(known.group, member, timeout_ms=wait_ms) for member in members])
    for outcome in outcomes:
        if isinstance(outcome, Exception) and not isinstance(outcome, HalfmoonError):
            raise outcome
    known.infos = dict(zip(members, outcomes))
    return len(members)


def _look_closer(admin: AdminCore, known: GroupFacts) -> Op[None]:
    """Add brokers that do not let the group consume, and its dead letters. Raises GroupNotFound."""
    brokers = sorted((yield from admin.cluster()).broker_addr_table.items())
    tables = []
    for broker, data in brokers:
        if 0 in data.broker_addrs:
            tables.append((broker, (yield from admin.group_configs(data.broker_addrs[0]))))
    if not any(known.group in table for _, table in tables):
        raise GroupNotFound(f"no broker knows a consumer group {known.group}")
    known.disabled = [broker for broker, table in tables if known.group in table and not table[known.group].consume_enable]
    try:
        ends = (yield from admin.topic_stats(DLQ_PREFIX + known.group)).values()
        known.dead_letters = sum(max(0, end.max_offset) - max(0, end.min_offset) for end in ends)
    except TopicNotFound:
        known.dead_letters = 0


def _unreadable(admin: AdminCore, known: GroupFacts) -> Op[None]:
    """Add the topics in which messages wait and which brokers give out to nobody."""
    for topic in sorted({queue.topic for queue in known.queues if known.lag([queue])}):
        try:
            route = yield from admin.topic_route(topic)
        except TopicNotFound:
            continue
        known.unreadable += [f"{topic} at {data.broker_name}" for data in route.queue_datas if not data.perm & Perm.READ]


def _health(known: GroupFacts, asked: int, at_ms: int) -> GroupHealth:
    held = {queue: member for member, info in known.answers().items() for queue in info.mq_table}
    last = [one.last_timestamp for queue, one in known.queues.items() if known.lag([queue]) and one.last_timestamp > 0]
    return GroupHealth(
        group=known.group,
        model=known.model,
        members=[_member(known, client_id) for client_id in known.members],
        unasked=len(known.members) - asked,
        queues=[
            QueueProgress(queue, one.broker_offset, one.consumer_offset, one.last_timestamp, held.get(queue))
            for queue, one in known.queues.items()
        ],
        behind_ms=max(0, at_ms - min(last)) if last else None,
        redelivery=known.redelivery,
        dead_letters=known.dead_letters,
        findings=findings(known, at_ms),
    )


def _member(known: GroupFacts, client_id: str) -> GroupMember:
    client: Any = known.connections[client_id]
    facts = (client_id, client.client_addr.removeprefix("/"), client.language, version_name(client.version))
    if (info := known.answers().get(client_id)) is None:
        return GroupMember(*facts)
    in_process = sum(held.cached_msg_count for held in info.mq_table.values())
    return GroupMember(*facts, started_ms(info) or None, subscriptions(info), len(info.mq_table), in_process)
