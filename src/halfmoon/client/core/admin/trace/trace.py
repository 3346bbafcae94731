"""A message's life, by what brokers keep anyway: its records, the progress of groups, its transaction, and trace records.

Plain reads, so that it works on any broker: by key (12), by id (33), progress (14), who consumes (300); of transactions what
`halfmoon.client.core.admin.transactions` tells. What no broker keeps stands in ``not_reported``. Changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.pages import masters
from halfmoon.client.core.admin.trace.find import GROUPS_MAX, Copies, copies_of, groups_of, located, traced
from halfmoon.client.core.admin.transaction_facts import COMMITTED, EXPIRED, PREPARED, ROLLED_BACK, TransactionAt
from halfmoon.client.core.admin.transactions import transaction
from halfmoon.client.core.ask import call
from halfmoon.client.core.names import DLQ_PREFIX, RETRY_PREFIX, unwrap
from halfmoon.effects import Op
from halfmoon.errors import BrokerError, QueryNotFound, UsageError
from halfmoon.model import RECONSUME_REASON, StoredMessage
from halfmoon.results import GroupTrace, MessageTrace, TraceEvent
from halfmoon.wire.bodies.traces import END_TRANSACTION, PUB, SUB_AFTER, SUB_BEFORE, TRACE_TOPIC, ConsumeCode, TraceRecord
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset

UNKNOWN_MS = -1

WAITS, CONSUMED, AGAIN, DEAD, NOT_BEGUN = "waits", "consumed", "waits again", "dead letter", "not begun"


def trace(admin: AdminCore, msg_id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC) -> Op[MessageTrace]:
    """Return the life of the message with a sender's id, or a broker's. Naming its ``topic`` avoids a search through all topics.

    It is put together from what brokers keep anyway, and from what clients with ``trace`` switched on sent to ``trace_topic``.

    Raises QueryNotFound, NetworkError; UsageError when there are too many topics to search.
    """
    brokers = yield from masters(admin)
    name = msg_id
    msg_id, real_topic = yield from located(admin, brokers, name, topic)
    groups = yield from groups_of(admin, brokers, real_topic)
    copies = yield from copies_of(admin, brokers, real_topic, msg_id, groups)
    if not copies:
        silent = f"; {', '.join(copies.silent)} did not answer" if copies.silent else ""
        raise QueryNotFound(f"no message {name}{f' in topic {topic}' if topic else ''}{silent}")
    first = copies.oldest()
    life = MessageTrace(
        msg_id=msg_id, topic=unwrap(real_topic, admin.settings.namespace), tag=first.tag or "", keys=" ".join(first.keys)
    )
    life.not_reported.append("when a group acknowledged a message is not kept, only how far it is")
    life.not_reported += [f"what broker {name} has: it did not answer" for name in copies.silent]
    if len(groups) >= GROUPS_MAX:
        life.not_reported.append(f"only {GROUPS_MAX} groups of the topic are looked at")
    life.events.append(_born(first))
    yield from _transaction(admin, copies, life)
    life.events += [event for copy in copies.parked for event in _parked(copies, copy)]
    life.events += [_stored(copies, copy) for copy in copies.visible]
    for group in groups:
        life.groups.append((yield from _group(admin, copies, group)))
        life.events += _redeliveries(copies, group)
    records = yield from traced(admin, brokers, trace_topic, msg_id)
    life.events += [_client_event(record, records) for record in records]
    life.events.sort(key=lambda event: (event.at_ms == UNKNOWN_MS, event.at_ms))
    return life


# ---------------------------------------------------------------- what records tell


def _born(first: StoredMessage) -> TraceEvent:
    tag = f"tag {first.tag}, " if first.tag else ""
    keys = f"keys {' '.join(first.keys)}, " if first.keys else ""
    return TraceEvent(at_ms=first.born_ms, what="born", who=first.born_host, detail=f"{tag}{keys}{first.held_bytes} bytes")


def _place(copies: Copies, copy: StoredMessage) -> str:
    return f"{copies.name_of(copy)}/{copy.queue_id}@{copy.queue_offset}"


def _stored(copies: Copies, copy: StoredMessage) -> TraceEvent:
    what = "committed" if copies.halves else "delivered after its delay" if copies.parked_for(copy.topic) else "stored"
    return TraceEvent(
        at_ms=copy.store_ms, what=what, who=copies.name_of(copy), where=_place(copies, copy), detail=copy.offset_msg_id
    )


def _parked(copies: Copies, copy: StoredMessage) -> list[TraceEvent]:
    topic = copy.properties.get("REAL_TOPIC", "")
    if topic.startswith(RETRY_PREFIX):
        return []  # told with the group it comes back to
    level = copy.properties.get("DELAY", "")
    until = copy.properties.get("TIMER_OUT_MS", "")
    detail = f"level {level}" if level else f"until {_time_text(until)}" if until else ""
    return [TraceEvent(at_ms=copy.store_ms, what="delayed", who=copies.name_of(copy), where=_place(copies, copy), detail=detail)]


def _time_text(ms: str) -> str:
    """Return a time of ms since the epoch in UTC, for people; a text that is none stays as it is."""
    if not (ms.isascii() and ms.isdigit() and len(ms) <= 14):
        return ms[:20]
    return datetime.fromtimestamp(int(ms) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _redeliveries(copies: Copies, group: str) -> list[TraceEvent]:
    events = []
    for copy in copies.parked_for(RETRY_PREFIX + group):
        reason, level = copy.properties.get(RECONSUME_REASON, ""), copy.properties.get("DELAY", "")
        detail = ", ".join(text for text in (f"level {level}" if level else "", reason) if text)
        events.append(TraceEvent(at_ms=copy.store_ms, what="sent back", who=group, where=_place(copies, copy), detail=detail))
    for copy in copies.of(RETRY_PREFIX + group):
        detail = f"attempt {copy.reconsume_times + 1}"
        events.append(TraceEvent(at_ms=copy.store_ms, what="delivered again", who=group, where=_place(copies, copy), detail=detail))
    for copy in copies.of(DLQ_PREFIX + group):
        reason = copy.properties.get(RECONSUME_REASON, "")
        events.append(TraceEvent(at_ms=copy.store_ms, what="dead letter", who=group, where=_place(copies, copy), detail=reason))
    return events


# ---------------------------------------------------------------- transactions


def _transaction(admin: AdminCore, copies: Copies, life: MessageTrace) -> Op[None]:
    """Tell the half message, its checks and what was decided."""
    halves = sorted(copies.halves, key=lambda half: half.store_ms)
    for number, half in enumerate(halves):
        what = "half" if not number else "half, written again for a check"
        group = half.properties.get("PGROUP", "")
        life.events.append(
            TraceEvent(at_ms=half.store_ms, what=what, who=group, where=_place(copies, half), detail=half.offset_msg_id)
        )
    for copy in copies.expired:
        reason = copy.properties.get("TRANSACTION_EXPIRED_REASON", "")
        life.events.append(TraceEvent(at_ms=copy.store_ms, what="expired", who=copies.name_of(copy), detail=reason))
    if not halves:
        return
    try:
        status: TransactionAt = yield from transaction(admin, halves[-1].offset_msg_id)
    except (BrokerError, UsageError) as exc:
        life.not_reported.append(f"what became of the transaction: {exc}")
        return
    life.transaction = status.state
    life.not_reported += status.not_reported
    for check in status.checks:
        answer = "no answer" if check.answer == "NONE" else f"answer {check.answer}"
        life.events.append(TraceEvent(at_ms=check.sent_ms, what="checked", who=status.group, detail=answer))
    if status.state == PREPARED:
        life.events.append(TraceEvent(what="not decided", who=status.group, detail=f"{status.checks_left} checks left"))
    elif status.state == ROLLED_BACK:
        life.events.append(TraceEvent(what="rolled back", who=status.group))
        life.not_reported.append("when a transaction was rolled back is not kept")
    elif status.state not in (COMMITTED, EXPIRED):
        life.events.append(TraceEvent(what=status.state.lower(), who=status.group))


# ---------------------------------------------------------------- groups


def _group(admin: AdminCore, copies: Copies, group: str) -> Op[GroupTrace]:
    """Tell how far a group is with the newest of the message's records that are meant for it."""
    retries, parked = copies.of(RETRY_PREFIX + group), copies.parked_for(RETRY_PREFIX + group)
    dead = copies.of(DLQ_PREFIX + group)
    sent_back = max(len(retries), len(parked))
    progress = GroupTrace(group=unwrap(group, admin.settings.namespace), retries=sent_back)
    if dead:
        progress.state, progress.where = DEAD, _place(copies, dead[-1])
        return progress
    at = retries[-1] if retries else copies.visible[-1] if copies.visible else None
    if len(parked) > len(retries):
        progress.state, progress.where = AGAIN, _place(copies, parked[-1])
        return progress
    if at is None:
        progress.state = WAITS
        return progress
    progress.where = _place(copies, at)
    request = QueryConsumerOffset(consumer_group=group, topic=at.topic, queue_id=at.queue_id, set_zero_if_not_found=False)
    reply = yield from call(copies.address_of(at), request, b"", admin.settings.request_timeout_ms)
    if reply.code != 0:
        progress.state = NOT_BEGUN
        return progress
    progress.progress = reply.header(OffsetReply).offset
    beyond = progress.progress > at.queue_offset
    progress.behind = 0 if beyond else at.queue_offset - progress.progress
    progress.state = CONSUMED if beyond else AGAIN if retries else WAITS
    return progress


# ---------------------------------------------------------------- what clients reported


def _client_event(record: TraceRecord, records: list[TraceRecord]) -> TraceEvent:
    """Return what a client did, by one of the trace records that it sent."""
    if record.kind == SUB_AFTER:
        event = _listener_returned(record, records)
    else:
        event = TraceEvent(at_ms=record.at_ms, who=record.group)
        if record.kind == SUB_BEFORE:
            event.what, event.detail = "handed to the listener", f"attempt {record.retries + 1}"
        elif record.kind == PUB:
            event.what, event.where = "sent", record.store_host
            event.detail = f"{'stored' if record.success else 'failed'} after {record.cost_ms} ms"
        else:
            assert record.kind == END_TRANSACTION
            event.what, event.where = "second phase sent", record.store_host
            event.detail = f"{record.state}{', as a check asked' if record.from_check else ''}"
    event.reported_by = "client"
    return event


def _listener_returned(record: TraceRecord, records: list[TraceRecord]) -> TraceEvent:
    """Return the event of a call's end. Its record may lack time and group, which are then taken from that of its begin."""
    begins = (other for other in records if other.kind == SUB_BEFORE and other.request_id == record.request_id)
    begin = next(begins, None)
    status = ConsumeCode(record.code).name if record.code in ConsumeCode._value2member_map_ else str(record.code)
    at_ms = record.at_ms if record.at_ms >= 0 or begin is None else begin.at_ms + record.cost_ms
    who = record.group or (begin.group if begin is not None else "")
    return TraceEvent(at_ms=at_ms, what="listener returned", who=who, detail=f"{status} after {record.cost_ms} ms")
