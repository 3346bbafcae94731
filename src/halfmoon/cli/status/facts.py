"""What a cluster says of itself at one moment, and whether that is well. Asks every broker, and for the progress of every group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from halfmoon.client.admin import Admin
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, UsageError
from halfmoon.shown.names import is_users_group
from halfmoon.shown.texts import span_text

DISK_WARNING = 0.90
"""A broker refuses sends from this share of its disk on. Follows diskSpaceWarningLevelRatio."""


class Limits(NamedTuple):
    """From where on a cluster counts as degraded; None: not at all."""

    lag: int | None = None
    pending_age_ms: int | None = None
    disk: float = DISK_WARNING


class Broker(NamedTuple):
    """One broker. Rates are those of the last seconds, as it counts them; None: it does not say, or there is none."""

    name: str
    id: int
    address: str
    cluster: str
    version: str | None
    native: str | None
    uptime_ms: int | None
    in_per_second: float
    out_per_second: float
    in_today: int
    out_today: int
    transactions_pending: int | None
    oldest_pending_ms: int | None
    requests_refused: int | None
    disk_used: float | None
    fault: str | None


class Backlog(NamedTuple):
    """How far a group is behind: messages, and the age of what it consumed last where it has not consumed all."""

    messages: int
    behind_ms: int | None


class Status(NamedTuple):
    """A cluster at one moment. ``health`` is healthy, degraded or down."""

    at_ms: int
    health: str
    faults: list[str]
    brokers: list[Broker]
    backlog: dict[str, Backlog]


def status_of(admin: Admin, limits: Limits) -> Status:
    """Ask a cluster. One that cannot be reached is down, with the reason; groups that never consumed are left out."""
    at_ms = time.time_ns() // 1_000_000
    try:
        brokers, backlog = brokers_of(admin, at_ms), _backlogs(admin, at_ms)
    except (NetworkError, BrokerError, UsageError) as exc:
        return Status(at_ms, "down", [str(exc)], [], {})
    faults = _faults(brokers, backlog, limits)
    health = "degraded" if faults else "healthy"
    return Status(at_ms, health if any(broker.version for broker in brokers) else "down", faults, brokers, backlog)


def _faults(brokers: list[Broker], backlog: Mapping[str, Backlog], limits: Limits) -> list[str]:
    faults = []
    for broker in brokers:
        if broker.fault:
            faults.append(f"{broker.name}: {broker.fault}")
        elif broker.disk_used is not None and broker.disk_used >= limits.disk:
            faults.append(f"{broker.name}: its disk is {broker.disk_used:.0%} full")
        age = broker.oldest_pending_ms
        if age is not None and limits.pending_age_ms is not None and age > limits.pending_age_ms:
            faults.append(f"{broker.name}: a transaction has been pending for {span_text(age)}")
    for group, behind in backlog.items():
        if limits.lag is not None and behind.messages > limits.lag:
            faults.append(f"{group} is {behind.messages:,} messages behind")
    return faults


def brokers_of(admin: Admin, at_ms: int) -> list[Broker]:
    """Ask every broker what it says of itself, by name and id; one that does not answer has a fault that says so."""
    brokers = []
    for name, data in sorted(admin.cluster().broker_addr_table.items()):
        for broker_id, address in sorted(data.broker_addrs.items()):
            try:
                info, fault = admin.broker_runtime_info(address), None
            except HalfmoonError as exc:
                info, fault = {}, f"does not answer: {exc}"
            brokers.append(_broker(name, broker_id, address, data.cluster, info, fault, at_ms))
    return brokers


def _broker(
    name: str, broker_id: int, address: str, cluster: str, info: Mapping[str, str], fault: str | None, at_ms: int
) -> Broker:  # fmt: skip
    started_ms = _count(info.get("bootTimestamp"))
    return Broker(
        name=name,
        id=broker_id,
        address=address,
        cluster=cluster,
        version=info.get("brokerVersionDesc"),
        native=info.get("nativeVersion") or None,
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


def _backlogs(admin: Admin, at_ms: int) -> dict[str, Backlog]:
    backlog = {}
    for group in filter(is_users_group, admin.groups()):
        try:
            backlog[group] = _backlog(list(admin.consume_stats(group).values()), at_ms)
        except BrokerError:
            continue
    return backlog


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


def facts_of(status: Status) -> dict[str, Any]:
    """Return a status as JSON has it."""
    return {
        "at_ms": status.at_ms,
        "health": status.health,
        "faults": status.faults,
        "brokers": [broker._asdict() for broker in status.brokers],
        "backlog": {group: behind._asdict() for group, behind in status.backlog.items()},
    }
