"""Trace records of what a client does, where tracing is on: gathered in memory, sent to the trace topic beside the work.

Follows AsyncTraceDispatcher, SendMessageTraceHookImpl, EndTransactionTraceHookImpl and ConsumeMessageTraceHookImpl (4.9.8).
Differs: attempts that failed are traced too; each message of a batch has a record of its own, so that its id finds it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.names import check_topic
from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.settings import ProducerSettings, PushSettings
from halfmoon.effects import Op, Signal, now, steady, wait
from halfmoon.errors import HalfmoonError
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.model import KEYS, TAGS, LocalTransactionState, Message, MessageQueue, SendResult, SendStatus, StoredMessage
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies.traces import (
    END_TRANSACTION,
    PUB,
    SUB_AFTER,
    SUB_BEFORE,
    ConsumeCode,
    MessageKind,
    TraceRecord,
    encode_traces,
)
from halfmoon.wire.codes import TRANSACTION_MASK, TRANSACTION_PREPARED
from halfmoon.wire.ids import UniqueIds

HELD_MAX = 20_480
"""Records that wait to be sent; one more is dropped and counted. The original holds 1,024 bundles."""
RECORDS_MAX, BODY_BYTES_MAX, KEYS_BYTES_MAX = 100, 128_000, PROPERTIES_BYTES_MAX // 2
"""Records of one trace message, and the bytes of its body and its keys. No record is as long as half a body."""
PAUSE_MS, SEND_TIMEOUT_MS = 500, 5_000
"""How long records wait for others, and how long sending them may take."""

STATES = {
    LocalTransactionState.COMMIT: "COMMIT_MESSAGE",
    LocalTransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    LocalTransactionState.UNKNOWN: "UNKNOW",  # spelt so
    LocalTransactionState.OPEN: "UNKNOW",
    LocalTransactionState.NOT_MINE: "UNKNOW",
}

log = logging.getLogger("halfmoon.client")


class Tracer:
    """The records of one client. What it does never fails, and never keeps the client's work waiting.

    Raises UsageError for a trace topic that cannot be one.
    """

    def __init__(self, settings: ProducerSettings | PushSettings, instance: Instance, ids: UniqueIds) -> None:
        check_topic(settings.trace_topic)
        self.topic = settings.trace_topic
        self.group = instance.wire(settings.group)
        self.dropped_count = 0
        self._ids = ids
        self._held: deque[TraceRecord] = deque()
        self._full = Signal()
        kind = "PRODUCE" if isinstance(settings, ProducerSettings) else "CONSUME"
        inner = ProducerSettings(
            group=f"_INNER_TRACE_PRODUCER-{self.group}-{kind}-1", nameserver=settings.nameserver, send_timeout_ms=SEND_TIMEOUT_MS
        )
        self._sender = Sender(inner, instance.routes, ids)
        self._sender.running = True

    # ------------------------------------------------------------ what happened

    def sent(self, outgoing: Outgoing, queue: MessageQueue, address: str, begin: int, over: int, result: SendResult | None) -> None:
        """Trace an attempt to send that ended; without a result it failed."""
        # A trace message that is traced would make another, without end.
        if outgoing.topic == self.topic or (result is not None and not result.trace_on):
            return
        properties = wire_properties.decode(outgoing.properties.encode())
        kind = MessageKind.DELAY if "DELAY" in properties else MessageKind.NORMAL
        if outgoing.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED:
            kind = MessageKind.HALF
        ids = outgoing.msg_id.split(",")
        stored = (result.offset_msg_id.split(",") if result is not None else []) + [""] * len(ids)
        for msg_id, offset_msg_id in zip(ids, stored):
            self._note(TraceRecord(
                kind=PUB, at_ms=begin, region=result.region_id if result is not None else "", group=self.group,
                topic=outgoing.topic, msg_id=msg_id, tags=properties.get(TAGS, ""), keys=properties.get(KEYS, ""),
                store_host=address,
                size_bytes=len(outgoing.body), cost_ms=over - begin, message_kind=int(kind), offset_msg_id=offset_msg_id,
                success=result is not None and result.status is SendStatus.SEND_OK,
            ))  # fmt: skip
        self.look()

    def ended(
        self, message: Message | StoredMessage, topic: str, msg_id: str, address: str, state: LocalTransactionState, at: int, *,
        from_check: bool,
    ) -> None:  # fmt: skip
        """Trace a second phase that was sent."""
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        self._note(TraceRecord(
            kind=END_TRANSACTION, at_ms=at, group=self.group, topic=topic, msg_id=msg_id, tags=message.tag or "", keys=keys,
            store_host=address, message_kind=int(MessageKind.COMMIT), transaction_id=msg_id, state=STATES[state],
            from_check=from_check,
        ))  # fmt: skip
        self.look()

    def handed(self, messages: Sequence[StoredMessage], at: int) -> str:
        """Trace the begin of a listener's call; return the id that its end names. Thread-safe, like `returned`."""
        request_id = self._ids.next(at)
        for message in messages:
            if message.properties.get("TRACE_ON") != "false":
                self._note(TraceRecord(
                    kind=SUB_BEFORE, at_ms=at, region=message.properties.get("MSG_REGION", ""), group=self.group,
                    request_id=request_id, msg_id=message.msg_id, retries=message.reconsume_times, keys=" ".join(message.keys),
                ))  # fmt: skip
        return request_id

    def returned(self, request_id: str, messages: Sequence[StoredMessage], begin: int, over: int, code: ConsumeCode) -> None:
        """Trace the end of a listener's call, by a return or an error."""
        cost_ms = (over - begin) // max(1, len(messages))
        for message in messages:
            if message.properties.get("TRACE_ON") != "false":
                self._note(TraceRecord(
                    kind=SUB_AFTER, at_ms=over, group=self.group, request_id=request_id, msg_id=message.msg_id, cost_ms=cost_ms,
                    success=code is ConsumeCode.SUCCESS, keys=" ".join(message.keys), code=int(code),
                ))  # fmt: skip

    def _note(self, record: TraceRecord) -> None:
        if len(self._held) >= HELD_MAX:
            self.dropped_count += 1
            return
        self._held.append(record)

    def look(self) -> None:
        """Send a bundle at once when it is full."""
        if len(self._held) >= RECORDS_MAX:
            self._full.fire()

    # ------------------------------------------------------------ sending

    def keep_sending(self) -> Op[None]:
        """Send what was noted, until cancelled."""
        while True:
            yield from wait(self._full, PAUSE_MS)
            yield from self.flush()

    def flush(self) -> Op[None]:
        """Send all that is held now. What cannot be sent is dropped, counted and logged."""
        while self._held:
            records = self._bundle()
            message = Message(self.topic, encode_traces(records).encode("utf-8", "replace"), keys=_keys(records))
            try:
                begin = yield from steady()
                outgoing = yield from self._sender.prepare(message, (yield from now()))
                yield from self._sender.deliver(outgoing, begin, SEND_TIMEOUT_MS)
            except HalfmoonError as exc:
                self.dropped_count += len(records)
                log.info("trace records dropped: count=%d topic=%s reason=%s", len(records), self.topic, exc)

    def _bundle(self) -> list[TraceRecord]:
        """Take out the records of one trace message."""
        records: list[TraceRecord] = []
        body_bytes = 0
        while self._held and len(records) < RECORDS_MAX and body_bytes < BODY_BYTES_MAX // 2:
            record = self._held.popleft()
            records.append(record)
            body_bytes += len(encode_traces([record]).encode("utf-8", "replace"))
        return records


def _keys(records: Sequence[TraceRecord]) -> list[str]:
    """Return the ids and keys by which a trace message is found: all ids, and of the keys as many as fit."""
    ids = dict.fromkeys(record.msg_id for record in records if record.msg_id)
    left = KEYS_BYTES_MAX - sum(len(text) + 1 for text in ids)
    for key in (key for record in records for key in record.keys.split()):
        left -= 0 if key in ids else len(key.encode("utf-8", "replace")) + 1
        if left < 0:
            break
        ids[key] = None
    return list(ids)
