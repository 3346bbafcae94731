"""Status of brokers, from the statistics that they report. Texts that are no numbers count as not reported."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import msgspec

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.ask import ask
from halfmoon.effects import Op, gather, now
from halfmoon.errors import AccessRefused, BrokerError, HalfmoonError, NetworkError, RequestNotSupported, text_of
from halfmoon.results import BrokerStatus, SlaveStatus
from halfmoon.wire.bodies import CopiesState, from_json
from halfmoon.wire.headers.admin import GetBrokerHaStatus


def brokers(admin: AdminCore) -> Op[list[BrokerStatus]]:
    """Return what every broker says of itself, by name and id; one that does not has a ``state`` and a fault that say why."""
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
            found.append(_broker(*member, {}, *_silence(outcome), at_ms))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            found.append(_broker(*member, outcome, "reports", None, at_ms))
    ends = {
        (name, broker_id): _count(info.get("commitLogMaxOffset"))
        for (name, broker_id, *_), info in zip(members, outcomes)
        if not isinstance(info, Exception)
    }
    return [_compared(each, ends) if each.id and each.behind_bytes is None else each for each in found]


def slaves(admin: AdminCore, broker_address: str) -> Op[list[SlaveStatus]]:
    """Return the slaves that copy a master's log; none where it does not report them, as RocketMQ 4."""
    try:
        reply = yield from ask(broker_address, GetBrokerHaStatus(), timeout_ms=admin.settings.request_timeout_ms)
    except RequestNotSupported:
        return []
    state = from_json(CopiesState, reply.body)
    return [SlaveStatus(each.addr, each.diff, each.behind_ms, each.in_sync) for each in state.ha_connection_info]


def _silence(error: HalfmoonError) -> tuple[str, str]:
    """Return the state of a broker that does not report, and its fault: three facts, each with a remedy of its own."""
    if isinstance(error, AccessRefused):
        return "no access", f"no access: {text_of(error)}"
    if isinstance(error, BrokerError):
        return "refuses", f"refuses to report: {text_of(error)}"
    return "no answer", f"does not answer: {error}" if isinstance(error, NetworkError) else f"its answer is not understood: {error}"


def _broker(
    name: str, broker_id: int, address: str, cluster: str, info: Mapping[str, str], state: str, fault: str | None, at_ms: int
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
        certificate_expires_ms=_count(info.get("tlsCertificateExpires")),
        state=state,
        pair=info.get("pairState"),
        behind_bytes=_count(info.get("slaveBehindBytes")),
        behind_ms=_count(info.get("slaveBehindMs")),
    )


def _compared(slave: BrokerStatus, ends: Mapping[tuple[str, int], int | None]) -> BrokerStatus:
    """Return the status of a slave that does not report how far it is behind: by the end of its log and of its master's."""
    end, masters = ends.get((slave.name, slave.id)), ends.get((slave.name, 0))
    return slave if end is None or masters is None else msgspec.structs.replace(slave, behind_bytes=max(0, masters - end))


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
