"""Health of a cluster at one moment. Asks every broker, and for the progress of every group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.effects import Op, gather, now
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, PeerError, UsageError
from halfmoon.limits import REASON_LENGTH_MAX
from halfmoon.results import Backlog, BrokerStatus, ClusterStatus, Finding, StatusLimits
from halfmoon.shown.names import is_users_group
from halfmoon.shown.texts import count_text, span_text

SIDE_BY_SIDE = 16
"""Groups that are asked for at once: few enough that what a broker does besides hardly waits."""


def status(admin: AdminCore, limits: StatusLimits | None = None, *, groups: bool = True) -> Op[ClusterStatus]:
    """Return how a cluster is. One that cannot be reached is down, with the reason; groups that never consumed are left out.

    Without ``groups`` only the brokers are asked, a request each; with them two more for each group.
    """
    at_ms = yield from now()
    failing: list[str] = []
    try:
        found = yield from brokers(admin)
        behind = (yield from backlogs(admin, failing=failing)) if groups else {}
    except (NetworkError, BrokerError, UsageError) as exc:
        return ClusterStatus(at_ms, "down", [str(exc)], [], {})
    findings = [*_of_brokers(found, limits or StatusLimits()), *_of_groups(behind, limits or StatusLimits())]
    faults = [finding.what for finding in findings if finding.severity != "note"]
    faults += [f"groups are not reported: {text}" for text in failing]
    health = "degraded" if faults else "healthy"
    return ClusterStatus(at_ms, health if any(broker.version for broker in found) else "down", faults, found, behind, findings)


def _of_brokers(brokers: list[BrokerStatus], limits: StatusLimits) -> Iterator[Finding]:
    if not brokers:
        yield Finding("no-brokers", "no broker is known", "Start a broker, and see which name server it registers with.")
    for broker in brokers:
        if broker.fault:
            yield Finding("broker", f"{broker.name}: {broker.fault}", "See the broker's log.")
        elif broker.disk_used is not None and broker.disk_used >= limits.disk:
            do = "Keep messages for a shorter time, or give the broker a larger disk: it refuses messages when the disk is full."
            yield Finding("disk", f"{broker.name}: its disk is {broker.disk_used:.0%} full", do, "warning")
        age = broker.oldest_pending_ms
        if age is not None and limits.pending_age_ms is not None and age > limits.pending_age_ms:
            what = f"{broker.name}: a transaction has been pending for {span_text(age)}"
            yield Finding("pending", what, "See `halfmoon tx list`.", "warning")


def _of_groups(backlog: Mapping[str, Backlog], limits: StatusLimits) -> Iterator[Finding]:
    for group, behind in backlog.items():
        if limits.lag is not None and behind.messages > limits.lag:
            what = f"{group} is {count_text(behind.messages)} behind"
            yield Finding("lag", what, "Start more members, or make its listener faster.", "warning", group)


def brokers(admin: AdminCore) -> Op[list[BrokerStatus]]:
    """Return what every broker says of itself, by name and id; one that does not answer has a fault that says so."""
    at_ms = yield from now()
    info = yield from admin.cluster()
    members = [
        (name, broker_id, address, data.cluster)
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    outcomes = yield from gather([admin.broker_runtime_info(address) for _, _, address, _ in members])
    found = []
    for member, outcome in zip(members, outcomes):
        if isinstance(outcome, HalfmoonError):
            found.append(_broker(*member, {}, f"does not answer: {outcome}", at_ms))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            found.append(_broker(*member, outcome, None, at_ms))
    return found


def _broker(
    name: str, broker_id: int, address: str, cluster: str, info: Mapping[str, str], fault: str | None, at_ms: int
) -> BrokerStatus:  # fmt: skip
    started_ms = _count(info.get("bootTimestamp"))
    return BrokerStatus(
        name=name,
        id=broker_id,
        address=address,
        cluster=cluster,
        version=info.get("brokerVersionDesc"),
        native=info.get("nativeVersion"),
        uptime_ms=max(0, at_ms - started_ms) if started_ms else None,
        in_per_second=_first_number(info.get("putTps")),
        out_per_second=_first_number(info.get("getTransferedTps") or info.get("getTransferredTps")),
        in_today=_since(info, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        out_today=_since(info, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        transactions_pending=_count(info.get("transactionsPending")),
        oldest_pending_ms=_count(info.get("transactionsOldestPendingAgeMs")),
        requests_refused=_count(info.get("requestsRefused")),
        disk_used=_share(info.get("commitLogDiskRatio")),
        fault=fault or info.get("brokerFaults") or None,
    )


def backlogs(admin: AdminCore, groups: Sequence[str] | None = None, *, failing: list[str] | None = None) -> Op[dict[str, Backlog]]:
    """Return how far groups are behind: those that are named, or all of the users'. Those that never consumed are left out.

    Raises the error of any broker that does not answer. One that answers nonsense is named in ``failing``, where that is given, and
    its groups are left out. Costs two requests a group.
    """
    at_ms = yield from now()
    names = [*filter(is_users_group, (yield from admin.groups(failing=failing)))] if groups is None else groups
    found = {}
    for some in (names[start : start + SIDE_BY_SIDE] for start in range(0, len(names), SIDE_BY_SIDE)):
        for name, outcome in zip(some, (yield from gather([admin.consume_stats(name) for name in some]))):
            if isinstance(outcome, BrokerError):
                continue
            if isinstance(outcome, PeerError) and failing is not None:
                if (text := str(outcome)[:REASON_LENGTH_MAX]) not in failing:
                    failing.append(text)
                continue
            if isinstance(outcome, Exception):
                raise outcome
            found[name] = _backlog(list(outcome.values()), at_ms)
    return found


def _backlog(queues: list[Any], at_ms: int) -> Backlog:
    late = [queue for queue in queues if queue.broker_offset > queue.consumer_offset]
    messages = sum(queue.broker_offset - queue.consumer_offset for queue in late)
    last = [queue.last_timestamp for queue in late if queue.last_timestamp > 0]
    return Backlog(messages, max(0, at_ms - min(last)) if last else None)


def _first_number(text: str | None) -> float:
    try:
        number = float((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0.0
    return number if isfinite(number) else 0.0


def _share(text: str | None) -> float | None:
    """Return a share; None where there is none yet: Apache's brokers say -1 until they have looked at their disk."""
    share = _first_number(text)
    return share if share > 0 else None


def _count(text: str | None) -> int | None:
    """Return a count or an age; None when there is none, or the broker does not report it."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else None


def _since(info: Mapping[str, str], now: str, morning: str) -> int:
    return int(_first_number(info.get(now)) - _first_number(info.get(morning)))
