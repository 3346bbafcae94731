"""`halfmoon status`: one word of health, rates and backlog, for people and for monitoring."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any

import typer

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, is_users_group
from halfmoon.cli.shared.output import show_json, show_table, span_text
from halfmoon.client.admin import Admin
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, UsageError

app = typer.Typer(add_completion=False)

DISK_WARNING = 0.90
"""A broker refuses sends from this share of its disk on. Follows diskSpaceWarningLevelRatio."""


@app.command()
def status(
    max_lag: Annotated[int | None, typer.Option("--max-lag", min=0, help="Report degraded if a group's lag is higher.")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show whether the cluster is healthy, degraded or down.

    Exit code 0 when healthy, else 1. Degraded: a broker does not answer or cannot write, its disk is nearly full, or a group is
    too far behind.

    Example: halfmoon status --max-lag 10000
    """
    try:
        with Admin(nameserver=nameserver) as admin:
            brokers, backlog = _brokers(admin), _backlog(admin)
        faults, health = _health(brokers, backlog, max_lag)
    except (NetworkError, BrokerError, UsageError) as exc:
        brokers, backlog, faults, health = [], {}, [str(exc)], "down"
    if as_json:
        show_json({"health": health, "faults": faults, "brokers": brokers, "backlog": backlog})
    else:
        say(health)
        for fault in faults:
            say(f"  {fault}")
        _show(brokers, backlog)
    if health != "healthy":
        raise typer.Exit(1)


def _health(brokers: list[dict[str, Any]], backlog: dict[str, int], max_lag: int | None) -> tuple[list[str], str]:
    """Return what is wrong, and the health in one word."""
    faults = [f"{broker['name']}: {broker['fault']}" for broker in brokers if broker["fault"]]
    faults += [f"{group} is {lag:,} messages behind" for group, lag in backlog.items() if max_lag is not None and lag > max_lag]
    if not any(broker["version"] for broker in brokers):
        return faults, "down"
    return faults, "degraded" if faults else "healthy"


def _brokers(admin: Admin) -> list[dict[str, Any]]:
    """Return the facts of every broker, with a fault where there is one."""
    brokers = []
    for name, data in sorted(admin.cluster().broker_addr_table.items()):
        for broker_id, address in sorted(data.broker_addrs.items()):
            facts: dict[str, Any] = {"name": name, "id": broker_id, "address": address, "cluster": data.cluster}
            try:
                info = admin.broker_runtime_info(address)
            except HalfmoonError as exc:
                info, facts["fault"] = {}, f"does not answer: {exc}"
            used = _first_number(info.get("commitLogDiskRatio"))
            facts |= {
                "version": info.get("brokerVersionDesc"),
                "native": info.get("nativeVersion") or None,
                "in_per_second": _first_number(info.get("putTps")),
                "out_per_second": _first_number(info.get("getTransferedTps") or info.get("getTransferredTps")),
                "in_today": _since(info, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
                "out_today": _since(info, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
                "transactions_pending": _number_or_none(info.get("transactionsPending")),
                "oldest_pending_ms": _number_or_none(info.get("transactionsOldestPendingAgeMs")),
                "disk_used": used,
                "boot_ms": int(_first_number(info.get("bootTimestamp"))),
            }
            full = f"its disk is {used:.0%} full" if used >= DISK_WARNING else None
            facts.setdefault("fault", info.get("brokerFaults") or full)
            brokers.append(facts)
    return brokers


def _backlog(admin: Admin) -> dict[str, int]:
    """Return how far every group is behind; groups that never consumed are left out."""
    backlog = {}
    for group in filter(is_users_group, admin.groups()):
        try:
            backlog[group] = admin.lag(group)
        except BrokerError:
            continue
    return backlog


def _first_number(text: str | None) -> float:
    try:
        number = float((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0.0
    return number if isfinite(number) else 0.0


def _number_or_none(text: str | None) -> int | None:
    """Return a count or an age; None when there is none, or the broker does not report it."""
    return int(text) if text is not None and text.isdecimal() else None


def _since(info: dict[str, str], now: str, morning: str) -> int:
    return int(_first_number(info.get(now)) - _first_number(info.get(morning)))


def _pending(broker: dict[str, Any]) -> str:
    """Return how many transactions are pending, and for how long."""
    count, age = broker["transactions_pending"], broker["oldest_pending_ms"]
    return "-" if count is None else f"{count:,}" + (f" for {span_text(age)}" if age is not None else "")


def _show(brokers: list[dict[str, Any]], backlog: dict[str, int]) -> None:
    rows = [
        (
            f"{b['name']}/{b['id']}",
            b["address"],
            (b["version"] or "-") + (f" native {b['native']}" if b["native"] else ""),
            f"{b['in_per_second']:,.0f}",
            f"{b['out_per_second']:,.0f}",
            f"{b['in_today']:,}",
            f"{b['out_today']:,}",
            _pending(b),
            f"{b['disk_used']:.0%}",
        )
        for b in brokers
    ]
    if rows:
        show_table("brokers", ("broker", "address", "version", "in/s", "out/s", "in today", "out today", "pending", "disk"), rows)
    if backlog:
        show_table("backlog", ("group", "messages behind"), backlog.items())
