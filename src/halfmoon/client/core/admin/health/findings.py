"""Reasons why a consumer group makes no progress, as sentences, from facts that brokers and members report. Asks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from halfmoon.client.core.admin.health.facts import GroupFacts, queues_text, some_text, started_ms, subscriptions
from halfmoon.client.core.admin.health.stuck import stuck_findings
from halfmoon.errors import HalfmoonError, text_of
from halfmoon.limits import STUCK_MS
from halfmoon.model import MessageQueue
from halfmoon.results import Finding
from halfmoon.shown.texts import count_text, span_text, wait_text

STALLED_MS, SILENT_MS, LEFT_BEHIND = 30_000, 120_000, 200
"""A listener hangs whose member has messages of a queue in process and neither begins nor ends one for so long, or has done so many
later ones while the oldest is not done. And for so long may a pull take (ProcessQueue.isPullExpired, RocketMQ 4.9.8)."""
SEVERITIES = ("blocked", "warning", "note")
REBALANCE = "Wait 20 s: members share queues out anew. If it stays, "
LOCKS = "Locks of members that are gone end after a minute. If it stays, restart it."
WHY_FAILED = "See in the members' logs why the listener failed."
SUSPENDED = "See whether it is suspended or cut off; else restart it."


def findings(known: GroupFacts, now_ms: int, stuck_ms: int = STUCK_MS) -> list[Finding]:
    """Return the findings about a group, the most severe first.

    A queue is stuck where messages wait and its progress has stood still for ``stuck_ms``, unless another finding says why.
    """
    members = list(_members(known, now_ms))
    explained = {queue for _, queues in members for queue in queues}
    found = [
        *stuck_findings(known, now_ms, stuck_ms, explained),
        *_state(known, now_ms),
        *_sharing(known),
        *(finding for finding, _ in members),
    ]
    named = [msgspec.structs.replace(finding, group=known.group) for finding in found]
    return by_severity(named)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order of their severity, the most severe first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _state(known: GroupFacts, now_ms: int) -> Iterator[Finding]:
    for broker in known.disabled:
        do = "Find out who switched it off, then switch it on (mqadmin updateSubGroup -s true)."
        yield Finding("disabled", f"Broker {broker} does not let this group consume: consumeEnable is false.", do)
    for place in known.unreadable:
        yield Finding(
            "unreadable",
            f"Topic {place} may not be read: its permission lacks 4.",
            "Give the topic the permission 6 on its page.",
        )
    if known.model == "broadcasting":
        what = "The group broadcasts: every member gets all messages and keeps its own progress, so brokers know no lag."
        yield Finding("broadcasting", what, "Look at the members' own figures.", "note")
    if not known.members:
        yield _memberless(known, now_ms)
    failed = sum(one.consume_failed_msgs for info in known.answers().values() for one in info.status_table.values())
    dead, waiting = known.dead_letters or 0, known.retries() + (known.delayed or 0)
    tries = "1 delivery" if failed == 1 else f"{failed:,} deliveries"
    for kind, count, what, do in (
        ("redelivery", waiting, f"{wait_text(waiting)} to be delivered again", WHY_FAILED),
        ("failures", failed, f"{tries} failed in the last hour", WHY_FAILED),
        ("dead-letters", dead, f"{count_text(dead)} went to the dead letters", "Read the reasons, repair, then replay them."),
    ):
        if count:
            yield Finding(kind, f"{what}.", do, "note")


def _memberless(known: GroupFacts, now_ms: int) -> Finding:
    """Return the finding about a group without members: it blocks where messages wait, in queues or for their redelivery."""
    if waiting := known.lag() + (known.delayed or 0):
        do = "Start a consumer of this group. If one runs, see in its log which name server and group it uses."
        unmoved_ms = known.unmoved_ms()
        since_ms = None if unmoved_ms is None else now_ms - unmoved_ms
        what = f"No member is online, and {wait_text(waiting)}{'' if known.lag() else ' to be delivered again'}."
        return Finding("no-members", what, do, since_ms=since_ms)
    what = "nothing waits" if known.has_consumed() else "the group has never consumed"
    do = "Start a consumer, unless none is meant to run."
    return Finding("no-members", f"No member is online, and {what}.", do, "note")


def _sharing(known: GroupFacts) -> Iterator[Finding]:
    """Yield findings on members with different subscriptions, and on queues without a member (members that pop hold none)."""
    answers, wanted = known.answers(), dict[tuple[str, ...], list[str]]()
    for member, info in answers.items():
        wanted.setdefault(tuple(subscriptions(info)), []).append(member)
    if len(wanted) > 1:
        each = "; ".join(f"{some_text(members)}: {some_text(texts) or 'nothing'}" for texts, members in wanted.items())
        do = "Give all members the same topics and expressions: brokers know one subscription of a group, so messages are skipped."
        yield Finding("subscriptions", f"Members subscribe differently. {each}.", do)
    pops = any(info.properties.get("PROP_CONSUME_TYPE") == "CONSUME_POP" for info in answers.values())
    if known.members and len(answers) == len(known.members) and known.model != "broadcasting" and not pops:
        held = {queue for info in answers.values() for queue in info.mq_table}
        if unheld := [queue for queue in known.queues if queue not in held and known.lag([queue])]:
            do = f"{REBALANCE}see whether every member subscribes to the topic."
            yield Finding("unheld", f"No member holds {queues_text(unheld)}, where {wait_text(known.lag(unheld))}.", do)


def _members(known: GroupFacts, now_ms: int) -> Iterator[tuple[Finding, list[MessageQueue]]]:
    """Yield findings about members, each with the queues that make no progress because of it."""
    for member, info in known.infos.items():
        if isinstance(info, HalfmoonError):
            do = "Look at its process and its log. Clients of some languages never answer this."
            yield Finding("silent", f"Member {member} does not say how it is: {text_of(info)}.", do, "note"), []
            continue
        late = {queue: held for queue, held in info.mq_table.items() if known.lag([queue])}
        in_order = info.properties.get("PROP_CONSUMEORDERLY") == "true"
        yield from _hung(member, info, late, now_ms)
        unlocked = [queue for queue, held in late.items() if in_order and not (held.locked or held.droped)]
        before_ms = now_ms - SILENT_MS
        idle = [queue for queue, held in late.items() if not held.cached_msg_count and 0 < held.last_pull_timestamp < before_ms]
        for kind, verb, do, queues in (
            ("leaving", "is giving up", f"{REBALANCE}restart it.", [queue for queue, held in late.items() if held.droped]),
            ("unlocked", "consumes in order and has no lock of", LOCKS, unlocked),
            ("not-pulling", f"has not pulled for {span_text(SILENT_MS)} from", SUSPENDED, idle),
        ):
            if queues:
                yield Finding(kind, f"Member {member} {verb} {queues_text(queues)}.", do), queues


def _hung(member: str, info: Any, late: Mapping[MessageQueue, Any], now_ms: int) -> Iterator[tuple[Finding, list[MessageQueue]]]:
    """Apache's clients note when a message was done, ours when one was begun; ours say 0 before the first."""
    filtered = {data.topic for data in info.subscription_set if data.sub_string not in ("", "*")}
    busy = {queue: held for queue, held in late.items() if held.cached_msg_count}
    last = {queue: max(held.last_consume_timestamp, started_ms(info)) for queue, held in busy.items()}
    stuck = {queue: ms for queue, ms in last.items() if ms < now_ms - STALLED_MS}
    done = {queue: one.cached_msg_max_offset - one.cached_msg_min_offset + 1 - one.cached_msg_count for queue, one in busy.items()}
    passed = {queue: count for queue, count in done.items() if count >= LEFT_BEHIND and queue.topic not in filtered}
    if queues := stuck or passed:
        queue = min(stuck, key=stuck.__getitem__) if stuck else max(passed, key=passed.__getitem__)
        since = f"none began or ended for {span_text(now_ms - last[queue])}" if stuck else f"{done[queue]:,} later ones are done"
        count = count_text(sum(busy[each].cached_msg_count for each in queues))
        do = "Look at what its listener waits for: a database, a lock, another service. A restart hands its messages to the others."
        what = f"Member {member} has {count} of {queues_text(queues)} in process, and {since}."
        yield Finding("hung", what, do, queue=queue, offset=busy[queue].cached_msg_min_offset), list(queues)
