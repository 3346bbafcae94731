"""Health of one consumer group: its brokers and members are asked, and findings follow from what they report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfmoon.client.core.admin.admin import NOTHING_THERE, AdminCore
from halfmoon.client.core.admin.health.facts import GroupFacts, started_ms, subscriptions
from halfmoon.client.core.admin.health.findings import findings
from halfmoon.client.core.names import DLQ_PREFIX, unwrap
from halfmoon.effects import Op, gather, now
from halfmoon.errors import BrokerError, ConsumerNotOnline, GroupNotFound, HalfmoonError, PeerError, TopicNotFound, text_of
from halfmoon.limits import REASON_LENGTH_MAX, STUCK_MS
from halfmoon.results import Backlog, Finding, GroupHealth, GroupMember, QueueProgress
from halfmoon.shown.names import is_users_group
from halfmoon.wire.codes import Perm, version_name

MEMBERS_MAX = 100
"""Most members of a group that are asked for their state."""
BRIEF_MEMBERS_MAX, BRIEF_WAIT_MS = 16, 1_000
"""Most members that are asked for a list of groups, and how long each."""
SUSPECT_MS = 2_000
"""Progress that stands still for less is not looked into for a list: a listener that fails tries a message again after a second."""
SIDE_BY_SIDE = 16
"""Groups that are asked for at once: few enough that what a broker does besides hardly waits."""


def group_findings(admin: AdminCore, group: str, *, stuck_ms: int = STUCK_MS) -> Op[list[Finding]]:
    """Return what needs attention in a group, the most severe first. ``stuck_ms``: see `findings`.

    Raises GroupNotFound, NetworkError.
    """
    return (yield from group_health(admin, group, stuck_ms=stuck_ms)).findings


def group_health(admin: AdminCore, group: str, *, brief: bool = False, stuck_ms: int = STUCK_MS) -> Op[GroupHealth]:
    """Return members and progress of a group, and what needs attention. Raises GroupNotFound, NetworkError.

    With ``brief``, for a list of groups, only the first members are asked, where progress stands still, and neither for permissions
    nor for dead letters. A group that no broker knows is then empty.
    """
    at_ms = yield from now()
    known = GroupFacts(group=group)
    if not brief:
        yield from _look_closer(admin, known)
    yield from _progress(admin, known)
    asked = 0
    if not brief or (known.lag() and _is_suspect(known)):
        asked = yield from _ask_members(admin, known, brief=brief)
    if not brief:
        yield from _unreadable(admin, known)
    return _health(known, asked, at_ms, stuck_ms)


def groups_health(
    admin: AdminCore, groups: Sequence[str] | None = None, *, failing: list[str] | None = None, stuck_ms: int = STUCK_MS
) -> Op[dict[str, GroupHealth]]:
    """Return the health of groups in brief, by name: of those that are named, or all of the users'.

    A group that no broker knows any more is left out. Raises the error of any broker that does not answer. One that refuses to
    report a group, or answers nonsense, is named in ``failing``, where that is given, and its groups are left out.
    """
    names = [*filter(is_users_group, (yield from admin.groups(failing=failing)))] if groups is None else groups
    found = {}
    for some in (names[start : start + SIDE_BY_SIDE] for start in range(0, len(names), SIDE_BY_SIDE)):
        asked = [group_health(admin, name, brief=True, stuck_ms=stuck_ms) for name in some]
        for name, outcome in zip(some, (yield from gather(asked))):
            if isinstance(outcome, GroupHealth):
                found[name] = outcome
            elif isinstance(outcome, PeerError | BrokerError) and not isinstance(outcome, NOTHING_THERE) and failing is not None:
                if (text := text_of(outcome)[:REASON_LENGTH_MAX]) not in failing:
                    failing.append(text)
            elif not isinstance(outcome, BrokerError):
                raise outcome
    return found


def backlogs(admin: AdminCore, groups: Sequence[str] | None = None, *, failing: list[str] | None = None) -> Op[dict[str, Backlog]]:
    """Return how far groups are behind: those that are named, or all of the users'; as `groups_health` does."""
    return {name: backlog_of(health) for name, health in (yield from groups_health(admin, groups, failing=failing)).items()}


def backlog_of(health: GroupHealth) -> Backlog:
    """Return how far a group is behind. Messages that are delayed until their redelivery count."""
    return Backlog(health.lag, health.behind_ms, health.redelivery, len(health.members))


def _progress(admin: AdminCore, known: GroupFacts) -> Op[None]:
    """Ask brokers for the members and the progress of a group."""
    addresses = yield from admin.masters_of_group(known.group)
    try:
        online = yield from admin.consumer_connections(known.group, at=addresses)
        known.connections = {member.client_id: member for member in online.connection_set}
        known.members = list(known.connections)
        known.model = "" if online.message_model is None else online.message_model.name.lower()
    except ConsumerNotOnline:
        pass
    try:
        stats = yield from admin.group_stats(known.group, at=addresses)
        known.queues, known.delayed = stats.offset_table, stats.delayed_redeliveries
    except (TopicNotFound, ConsumerNotOnline):
        pass


def _is_suspect(known: GroupFacts) -> bool:
    """Whether progress stands still somewhere, as far as brokers report it."""
    return (unmoved_ms := known.unmoved_ms()) is None or unmoved_ms >= SUSPECT_MS


def _ask_members(admin: AdminCore, known: GroupFacts, *, brief: bool) -> Op[int]:
    """Ask members for their state. Return how many were asked."""
    members = known.members[: BRIEF_MEMBERS_MAX if brief else MEMBERS_MAX]
    wait_ms = BRIEF_WAIT_MS if brief else None
    outcomes = yield from gather([admin.consumer_running_info(known.group, member, timeout_ms=wait_ms) for member in members])
    for outcome in outcomes:
        if isinstance(outcome, Exception) and not isinstance(outcome, HalfmoonError):
            raise outcome
    known.infos = {member: _named(admin, outcome) for member, outcome in zip(members, outcomes)}
    return len(members)


def _named(admin: AdminCore, info: Any) -> Any:
    """Return what a member says with the user's names of queues and topics, or its error as it is."""
    if isinstance(info, Exception) or not admin.settings.namespace:
        return info
    info.mq_table = {admin.user_queue(queue): held for queue, held in info.mq_table.items()}
    for data in info.subscription_set:
        data.topic = unwrap(data.topic, admin.settings.namespace)
    return info


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


def _health(known: GroupFacts, asked: int, at_ms: int, stuck_ms: int) -> GroupHealth:
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
        redelivery=known.redelivery(),
        lag=known.lag() + (known.delayed or 0),
        unmoved_ms=known.unmoved_ms(),
        dead_letters=known.dead_letters,
        findings=findings(known, at_ms, stuck_ms),
    )


def _member(known: GroupFacts, client_id: str) -> GroupMember:
    client: Any = known.connections[client_id]
    facts = (client_id, client.client_addr.removeprefix("/"), client.language, version_name(client.version))
    if (info := known.answers().get(client_id)) is None:
        return GroupMember(*facts)
    in_process = sum(held.cached_msg_count for held in info.mq_table.values())
    return GroupMember(*facts, started_ms(info) or None, subscriptions(info), len(info.mq_table), in_process)
