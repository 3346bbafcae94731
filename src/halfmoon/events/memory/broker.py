"""The broker inside a `MemoryBus`: stores, merges, decides, and fails where it was told to. Waits for nothing, calls nobody."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import Counter
from dataclasses import replace

from halfmoon.errors import ConnectFailed, HalfmoonError, RequestTimeout, SystemBusy, UsageError, settled_already
from halfmoon.events.memory.groups import Groups
from halfmoon.events.memory.records import Decision, Record, State, Verdict, decide
from halfmoon.model import (
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    LocalTransactionState,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
    StoredMessage,
)

MESSAGES_MAX = 100_000
"""On one bus; a test that needs more clears it in between."""

FOREVER = 1_000_000_000

BROKER_NAME = "memory"

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"

log = logging.getLogger("halfmoon.events")


class MemoryBroker:
    """Messages, their states, and who consumes them. ``lock`` guards everything; its methods take it themselves."""

    def __init__(self, check_after_ms: int) -> None:
        self.lock = threading.RLock()
        self.now_ms = time.time_ns() // 1_000_000
        self.check_after_ms = check_after_ms
        self.records: list[Record] = []
        self.visible: list[StoredMessage] = []
        self.groups = Groups()
        self.contradictions = self.repeats = 0
        self.down = False
        self._halves: dict[tuple[str, str, str], Record] = {}
        """By topic, id and producer group."""
        self._seen: dict[tuple[str, str], Record] = {}
        """Those that consumers may see, by topic and id: the first of each."""
        self._ends: Counter[str] = Counter()
        """How many messages each topic holds."""
        self._delayed: list[tuple[int, int, Record]] = []
        """A heap of those that consumers may not see yet: when they may, the record's index, the record."""
        self._places = 0
        self._faults: dict[str, list[tuple[bool, HalfmoonError]]] = {"send": [], "prepare": []}
        self._losing = 0

    # ------------------------------------------------------------ faults

    def fail_next(self, phase: str, stored: bool, times: int, error: HalfmoonError | None) -> None:
        """Let calls of a phase fail. Raises UsageError for another phase, or too many."""
        if phase not in self._faults:
            raise UsageError(f"phase must be 'prepare' or 'send', not {phase!r:.40}; for decisions see lose_second_phase()")
        if not 1 <= times <= MESSAGES_MAX:
            raise UsageError(f"times must be 1 to {MESSAGES_MAX}, not {times!r:.40}")
        what = "the answer" if stored else "the request"
        with self.lock:
            self._faults[phase] += [(stored, error or RequestTimeout(f"{what} was lost (injected fault)", BROKER_NAME))] * times

    def lose(self, times: int) -> None:
        """Lose decisions."""
        with self.lock:
            self._losing = times

    def heal(self) -> None:
        """Nothing fails any more."""
        with self.lock:
            self._losing, self.down = 0, False
            for faults in self._faults.values():
                faults.clear()

    # ------------------------------------------------------------ both phases

    def store(
        self, message: Message, group: str, *, attempt: int, phase: str, check_after_s: int | None = None, client: str = ""
    ) -> Record:
        """Store a message of a ``client``, or find the one of the same id when this is a repeat.

        Raises what a fault says, BrokerError for a repeat of what was rolled back, what `Message.wire_properties` raises.
        """
        transactional = phase == "prepare"
        properties = message.wire_properties()
        with self.lock:
            if self.down:
                raise ConnectFailed("the bus is down (injected fault)", BROKER_NAME)
            stored, error = self._faults[phase].pop(0) if self._faults[phase] else (True, None)
            if error is not None and not stored:
                raise error
            record = self._merged(message, properties, group if transactional else None, attempt)
            record = record or self._new(message, properties, group, transactional, client)
            if transactional and not record.repeats:
                after_ms = self.check_after_ms if check_after_s is None else check_after_s * 1000
                record.next_check_ms, record.sender = self.now_ms + after_ms, client
            if error is not None:
                raise error
            return record

    def _merged(self, message: Message, properties: dict[str, str], group: str | None, attempt: int) -> Record | None:
        """Return what a repeat repeats. ``group``: that of a half message, which repeats half messages only; None for others.

        Follows `halfmoon.broker.send.duplicates`.
        """
        if attempt == 1:
            return None
        key = message.topic, properties.get(UNIQ_KEY, "")
        record = self._seen.get(key) if group is None else self._halves.get((*key, group))
        if record is not None:
            if group is not None and record.state in (State.ROLLED_BACK, State.EXPIRED):
                raise settled_already(record.id, expired=record.state is State.EXPIRED, address=BROKER_NAME)
            record.repeats += 1
            self.repeats += 1
        return record

    def _new(self, message: Message, properties: dict[str, str], group: str, transactional: bool, client: str) -> Record:
        index = len(self.records)
        if index >= MESSAGES_MAX:
            raise SystemBusy(f"{MESSAGES_MAX} messages are on this bus: call clear() in between")
        due_ms = _due_ms(properties, self.now_ms)
        if transactional:
            properties |= {"TRAN_MSG": "true", "PGROUP": group, "PCLIENT": client, "REAL_TOPIC": message.topic, "REAL_QID": "0"}
        else:
            properties.pop(WAIT, None)
        offset = len(self._halves) if transactional else self._ends[message.topic]
        stored = _stored(message, properties, offset, self._place(), self.now_ms)
        queue = MessageQueue(message.topic, BROKER_NAME, 0)
        result = SendResult(SendStatus.SEND_OK, stored.msg_id, stored.offset_msg_id, queue, offset)
        state = State.UNKNOWN if transactional else State.COMMITTED
        record = Record(index, group, message, stored, result, transactional, state, self.now_ms)
        self.records.append(record)
        if transactional:
            self._halves[message.topic, stored.msg_id, group] = record
        elif due_ms > self.now_ms:
            self._seen.setdefault((stored.topic, stored.msg_id), record)  # one that waits is merged with, too
            heapq.heappush(self._delayed, (due_ms, index, record))
        else:
            self._show(record, stored)
        return record

    def show_due(self) -> int | None:
        """Let consumers see what waited until now; return when the next one is due, None for none. Under the lock."""
        while self._delayed and self._delayed[0][0] <= self.now_ms:
            _, _, record = heapq.heappop(self._delayed)
            record.stored = replace(record.stored, queue_offset=self._ends[record.stored.topic], store_ms=self.now_ms)
            self._show(record, record.stored)
        return self._delayed[0][0] if self._delayed else None

    def _place(self) -> int:
        """Return the place of the next message that is stored."""
        self._places += 1
        return self._places - 1

    def _show(self, record: Record, stored: StoredMessage) -> None:
        """Let consumers see a message."""
        self.visible.append(stored)
        self._ends[stored.topic] += 1
        self._seen.setdefault((stored.topic, stored.msg_id), record)

    def _commit(self, record: Record) -> None:
        """Store a half message once more, where consumers see it. Follows `halfmoon.broker.transactions.half`."""
        half = record.stored
        properties = {name: text for name, text in half.properties.items() if name != CHECK_TIMES}
        place = self._place()
        self._show(record, replace(
            half, properties=properties, queue_offset=self._ends[half.topic], physical_offset=place,
            offset_msg_id=_offset_id(place), sys_flag=int(LocalTransactionState.COMMIT), store_ms=self.now_ms,
            prepared_transaction_offset=half.physical_offset,
        ))  # fmt: skip

    def receive_decision(self, number: int, *, commit: bool) -> None:
        """Take a decision that a publisher sent about a record, unless it is to be lost on the way."""
        with self.lock:
            if self._losing > 0 or self.down:
                self._losing -= self._losing > 0
                return
            if number < len(self.records):
                self.decide(self.records[number], Decision.COMMIT if commit else Decision.ROLLBACK)

    def decide(self, record: Record, decision: Decision) -> Verdict:
        """Take a decision, or refuse it; both are counted."""
        with self.lock:
            was, verdict = record.state, decide(record, decision)
            if verdict is Verdict.TAKEN and decision is Decision.COMMIT:
                self._commit(record)
            elif verdict is Verdict.REPEATED:
                self.repeats += 1
            elif verdict is Verdict.CONTRADICTED:
                self.contradictions += 1
                log.warning("decision refused: event=%s decision=%s state=%s", record.id, decision.value, was.value)
            return verdict

    def in_state(self, state: State) -> list[Record]:
        """Records in a state, the oldest first."""
        with self.lock:
            return [record for record in self.records if record.state is state]

    def clear(self) -> None:
        """Forget every message; who consumes stays."""
        with self.lock:
            self.records, self.visible = [], []
            self._halves.clear()
            self._seen.clear()
            self._ends.clear()
            self._delayed.clear()
            self.groups.clear()


def _due_ms(properties: dict[str, str], now_ms: int) -> int:
    """Take the wish for a point in time out of a message's properties and return it; 0 for none."""
    delay_ms, due_ms = properties.pop(TIMER_DELAY_MS, ""), properties.pop(TIMER_DELIVER_MS, "")
    return int(due_ms) if due_ms else now_ms + int(delay_ms) if delay_ms else 0


def _offset_id(place: int) -> str:
    """Return the broker's id of a message: a number that no real broker gives."""
    return f"{0:016X}{place:016X}"


def _stored(message: Message, properties: dict[str, str], offset: int, place: int, now_ms: int) -> StoredMessage:
    """Return a message as it is stored first."""
    offset_id = _offset_id(place)
    properties.setdefault(UNIQ_KEY, offset_id)
    return StoredMessage(
        topic=message.topic, queue_id=0, queue_offset=offset, physical_offset=place, body=bytes(message.body),
        properties=properties, flag=message.flag, sys_flag=0,
        born_ms=now_ms, born_host="127.0.0.1:0", store_ms=now_ms, store_host="127.0.0.1:0",
        reconsume_times=0, prepared_transaction_offset=0, body_crc=0, size_bytes=len(message.body), offset_msg_id=offset_id,
        broker_name=BROKER_NAME,
    )  # fmt: skip
