"""Health of a cluster at one moment. Asks every broker, and for every group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.health.brokers import brokers
from halfmoon.client.core.admin.health.findings import by_severity
from halfmoon.client.core.admin.health.group import SIDE_BY_SIDE, backlog_of, groups_health
from halfmoon.client.core.admin.transactions import ask_halfmoon
from halfmoon.client.core.names import DLQ_PREFIX, unwrap
from halfmoon.effects import Op, gather, now
from halfmoon.errors import AccessRefused, BrokerError, HalfmoonError, NetworkError, TopicNotFound, UsageError, text_of
from halfmoon.limits import REASON_LENGTH_MAX
from halfmoon.results import BrokerStatus, ClusterStatus, Finding, GroupHealth, StatusLimits
from halfmoon.shown.texts import NO_BROKER, NO_BROKER_REMEDY, count_text, no_master_text, span_text
from halfmoon.wire.bodies import TransactionStats, from_json
from halfmoon.wire.headers.transaction import GetTransactionStats

DEAD_MAX = 100
"""Most groups whose dead letters are counted, the first by name."""


def status(admin: AdminCore, limits: StatusLimits | None = None, *, groups: bool | Sequence[str] = True) -> Op[ClusterStatus]:
    """Return how a cluster is. One that cannot be reached is down, with the reason; groups that never consumed are left out.

    Groups are asked for where a broker reports; those that cannot be listed are a part that is not reported. ``groups``: all, or
    those that are named. Without them (False) only the brokers are asked, a request each; with them three more for each group, for
    transactions that nobody decides, and for dead letters.
    """
    at_ms, limits = (yield from now()), limits or StatusLimits()
    failing: list[str] = []
    health: dict[str, GroupHealth] = {}
    try:
        found = yield from brokers(admin)
    except (NetworkError, BrokerError, UsageError) as exc:
        return ClusterStatus(at_ms, "no access" if isinstance(exc, AccessRefused) else "down", [text_of(exc)], [], {})
    masterless = _masterless(found)
    findings = [*masterless, *_of_brokers(found, limits), *_of_certificates(found, limits, at_ms)]
    states = {broker.state for broker in found}
    has_master = any(broker.id == 0 for broker in found)
    if groups is not False and "reports" in states and has_master:
        names = None if groups is True else groups
        try:
            health = yield from groups_health(admin, names, failing=failing, stuck_ms=limits.stuck_ms)
        except (NetworkError, BrokerError) as exc:
            failing.append(f"groups: {text_of(exc)}"[:REASON_LENGTH_MAX])
        findings += _of_groups(health, limits)
        findings += yield from _undecidable(admin, found, limits, failing)
        findings += yield from _dead_letters(admin, failing)
    faults = [_fault(finding) for finding in findings if finding.severity != "note"]
    faults += [f"not reported: {text}" for text in failing]
    word = _health(states, is_faulty=bool(faults)) if has_master else "down"
    backlog = {name: backlog_of(each) for name, each in health.items()}
    return ClusterStatus(at_ms, word, faults, found, backlog, by_severity(findings))


def _health(states: set[str], *, is_faulty: bool) -> str:
    """Return the health of a cluster with brokers in these states: down is one of which no broker answers."""
    if states <= {"no answer"}:
        return "down"
    if states <= {"no answer", "no access"}:
        return "no access"
    return "degraded" if is_faulty else "healthy"


def _fault(finding: Finding) -> str:
    """Return a finding as a line that begins with the name of its group."""
    what = finding.what.removesuffix(".")
    return what if finding.group is None else f"{finding.group}: {what[:1].lower()}{what[1:]}"


def _masterless(brokers: Sequence[BrokerStatus]) -> list[Finding]:
    """Return the brokers of which no master is registered."""
    members: dict[str, dict[int, str]] = {}
    for broker in brokers:
        members.setdefault(broker.name, {})[broker.id] = broker.address
    do = "Start its master. In a pair the log of a member says what it waits for: `halfmoon docs pairs`."
    return [Finding("no-master", no_master_text(name, list(all_.values())), do) for name, all_ in members.items() if 0 not in all_]


def _of_brokers(brokers: Sequence[BrokerStatus], limits: StatusLimits) -> Iterator[Finding]:
    if not brokers:
        yield Finding("no-brokers", NO_BROKER, NO_BROKER_REMEDY[:1].upper() + NO_BROKER_REMEDY[1:] + ".")
    for broker in brokers:
        if broker.fault:
            do = "Give an account that it knows." if broker.state == "no access" else "See the broker's log."
            yield Finding("broker", f"{broker.name}: {broker.fault}", do)
        elif broker.disk_used is not None and broker.disk_used >= limits.disk:
            do = "Keep messages for a shorter time, or give the broker a larger disk: it refuses messages when the disk is full."
            yield Finding("disk", f"{broker.name}: its disk is {broker.disk_used:.0%} full", do, "warning")
        age = broker.oldest_pending_ms
        if age is not None and limits.pending_age_ms is not None and age > limits.pending_age_ms:
            what = f"{broker.name}: a transaction has been pending for {span_text(age)}"
            yield Finding("pending", what, "See `halfmoon tx pending`.", "warning")


def _of_certificates(brokers: Sequence[BrokerStatus], limits: StatusLimits, now_ms: int) -> Iterator[Finding]:
    for broker in brokers:
        ends_ms = broker.certificate_expires_ms
        if ends_ms is None or ends_ms - now_ms >= limits.certificate_ms:
            continue
        do = "Renew it: the broker reads its files again by itself when they change."
        if ends_ms <= now_ms:
            what = f"{broker.name}: its certificate expired {span_text(now_ms - ends_ms)} ago, and clients refuse it"
        else:
            what = f"{broker.name}: its certificate expires in {span_text(ends_ms - now_ms)}"
        yield Finding("certificate", what, do, "blocked" if ends_ms <= now_ms else "warning")


def _of_groups(groups: Mapping[str, GroupHealth], limits: StatusLimits) -> Iterator[Finding]:
    """Yield what degrades the cluster: not groups that have been without a member for a short time."""
    for group, health in groups.items():
        if limits.lag is not None and health.lag > limits.lag:
            do = "Start more members, or make the listener faster."
            yield Finding("lag", f"{count_text(health.lag)} behind.", do, "warning", group)
        for finding in health.findings:
            waited_ms = health.unmoved_ms
            short = finding.kind == "no-members" and waited_ms is not None and waited_ms < limits.memberless_ms
            if finding.severity != "note" and not short:
                yield finding


def _undecidable(admin: AdminCore, brokers: Sequence[BrokerStatus], limits: StatusLimits, failing: list[str]) -> Op[list[Finding]]:
    """Return the producer groups without a member that have old half messages, as far as brokers report it."""
    findings = []
    for broker in brokers:
        if broker.oldest_pending_ms is None or broker.oldest_pending_ms < limits.undecidable_ms or broker.id:
            continue
        try:
            stats = from_json(TransactionStats, (yield from ask_halfmoon(admin, broker.address, GetTransactionStats())))
        except HalfmoonError as exc:
            failing.append(f"transactions of {broker.name}: {text_of(exc)[:REASON_LENGTH_MAX]}")
            continue
        for group in stats.groups:
            age_ms = stats.now_ms - group.oldest_ms if group.oldest_ms >= 0 else -1
            if group.producers or age_ms < limits.undecidable_ms:
                continue
            name = unwrap(group.group, admin.settings.namespace)
            count = f"{group.pending:,} transaction{' is' if group.pending == 1 else 's are'}"
            what = f"{broker.name}: {count} undecided for up to {span_text(age_ms)}, and producer group {name} has no member online"
            do = f"Start a producer of {name}, or decide with `halfmoon tx commit` or `halfmoon tx rollback`."
            findings.append(Finding("undecidable", what, do, "warning"))
    return findings


def _dead_letters(admin: AdminCore, failing: list[str]) -> Op[list[Finding]]:
    """Return the groups that have dead letters. They are notes: nothing waits because of them."""
    findings: list[Finding] = []
    try:
        topics = [topic for topic in (yield from admin.topics()) if topic.startswith(DLQ_PREFIX)]
    except HalfmoonError as exc:
        failing.append(f"dead letters: {text_of(exc)[:REASON_LENGTH_MAX]}")
        return findings
    for some in (topics[start : start + SIDE_BY_SIDE] for start in range(0, min(len(topics), DEAD_MAX), SIDE_BY_SIDE)):
        for topic, ends in zip(some, (yield from gather([admin.topic_stats(topic) for topic in some]))):
            if isinstance(ends, Exception):
                if not isinstance(ends, HalfmoonError):
                    raise ends
                if not isinstance(ends, TopicNotFound):
                    failing.append(f"{topic}: {text_of(ends)[:REASON_LENGTH_MAX]}")
                continue
            if count := sum(max(0, end.max_offset) - max(0, end.min_offset) for end in ends.values()):
                what, do = f"{count_text(count)} went to the dead letters.", "Read the reasons, repair, then replay them."
                findings.append(Finding("dead-letters", what, do, "note", topic.removeprefix(DLQ_PREFIX)))
    if (more := len(topics) - DEAD_MAX) > 0:
        what = f"Dead letters of {more:,} more groups are not counted."
        findings.append(Finding("dead-letters", what, "See `halfmoon dlq list`.", "note"))
    return findings
