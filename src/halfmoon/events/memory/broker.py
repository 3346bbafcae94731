"""The broker that a `MemoryBus` is: stores, merges, decides, and fails where it was told to. Asks nobody and delivers nothing."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from halfmoon.errors import ConnectFailed, HalfmoonError, RequestTimeout, SystemBusy, UsageError, settled_already
from halfmoon.events.memory.groups import Groups
from halfmoon.events.memory.records import FINAL, Member, Record, State
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

T = TypeVar("T")

MESSAGES_MAX = 100_000
"""On one bus; a test that needs more clears it in between."""

FOREVER = 1_000_000_000

BROKER_NAME = "memory"

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"

log = logging.getLogger("halfmoon.events")


class MemoryBroker:
    """Messages, their states, and who publishes and consumes them. ``lock`` guards everything; its methods take it themselves."""

    def __init__(self, check_after_ms: int) -> None:
        self.lock = threading.RLock()
        self.now_ms = time.time_ns() // 1_000_000
        """The time, ms since the epoch. It stands still until `MemoryBus.advance`."""
        self.contradictions = 0
        """How many decisions were refused because the opposite had been decided."""
        self.repeats = 0
        """How many decisions said again what was decided, and messages were merged with the one of the same id."""
        self.members: list[Member] = []
        self.records: list[Record] = []
        self.visible: list[StoredMessage] = []
        self.groups = Groups()
        self.down = False
        self.check_after_ms = check_after_ms
        self._halves: dict[tuple[str, str, str], Record] = {}
        """By topic, id and producer group."""
        self._seen: dict[tuple[str, str], Record] = {}
        """Those that consumers may see, by topic and id: the first of each."""
        self._ends: Counter[str] = Counter()
        """How many messages each topic holds."""
        self._delayed: list[tuple[int, int, Record]] = []
        """A heap of those that consumers may not see yet: when they may, their order, the record."""
        self._places = count()
        self._faults: dict[str, list[tuple[bool, HalfmoonError]]] = {"send": [], "prepare": []}
        self._losing = 0

    def clear(self) -> None:
        """Forget every message. Publishers and consumers stay."""
        with self.lock:
            for record in self.records:
                record.cleared = True
            self.records, self.visible = [], []
            self._halves.clear()
            self._seen.clear()
            self._ends.clear()
            self._delayed.clear()
            self.groups.clear()

    # ------------------------------------------------------------ publishers

    def kill(self, publisher: Any) -> None:
        """Let a publisher's process die: what it has not said is never said, and it answers no checks.

        ``publisher`` is a `Publisher` or what `transport` returned. What it calls afterwards fails.
        """
        member = getattr(publisher, "transport", publisher)
        if member not in self.members:
            raise UsageError(f"{publisher!r:.80} does not publish on this bus")
        apart(member.settle)
        member.dead = True

    def settle(self) -> None:
        """Have publishers decide what they can decide: of what a broker would have moments later, a test sees all."""
        for member in list(self.members):
            apart(member.settle)

    # ------------------------------------------------------------ faults

    def fail_next(self, phase: str, *, stored: bool = False, times: int = 1, error: HalfmoonError | None = None) -> None:
        """Let the next ``times`` calls of ``"prepare"`` or ``"send"`` fail; by default with a time-out.

        ``stored``: the answer is lost, the message is there. Otherwise the request is lost. Raises UsageError for another phase,
        or too many times.
        """
        if phase not in self._faults:
            raise UsageError(f"phase must be 'prepare' or 'send', not {phase!r:.40}; for decisions see lose_second_phase()")
        if not 1 <= times <= MESSAGES_MAX:
            raise UsageError(f"times must be 1 to {MESSAGES_MAX}, not {times!r:.40}")
        what = "the answer" if stored else "the request"
        with self.lock:
            self._faults[phase] += [(stored, error or RequestTimeout(f"{what} was lost (injected fault)", BROKER_NAME))] * times

    def lose_second_phase(self, times: int = FOREVER) -> None:
        """Lose the next ``times`` decisions on their way; without a number all, until `heal`."""
        self.settle()
        self._losing = times

    def go_down(self) -> None:
        """Be out of reach until `heal`: publishing fails, decisions are lost, nothing is checked or delivered."""
        self.settle()
        self.down = True

    def heal(self) -> None:
        """From now on nothing fails and nothing is lost."""
        self.settle()
        with self.lock:
            self._losing, self.down = 0, False
            for faults in self._faults.values():
                faults.clear()

    # ------------------------------------------------------------ both phases

    def store(self, message: Message, sender: Member, *, attempt: int, phase: str, check_after_s: int | None = None) -> Record:
        """Store a message, or find the one of the same id when this is a repeat.

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
            record = self._merged(message, properties, sender.group if transactional else None, attempt)
            record = record or self._new(message, properties, sender, transactional)
            if transactional and not record.repeats:
                after_ms = self.check_after_ms if check_after_s is None else check_after_s * 1000
                record.next_check_ms, record.sender = self.now_ms + after_ms, sender
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

    def _new(self, message: Message, properties: dict[str, str], sender: Member, transactional: bool) -> Record:
        if len(self.records) >= MESSAGES_MAX:
            raise SystemBusy(f"{MESSAGES_MAX} messages are on this bus: call clear() in between")
        due_ms = _due_ms(properties, self.now_ms)
        if transactional:
            properties |= {"TRAN_MSG": "true", "PGROUP": sender.group, "PCLIENT": sender.client}
            properties |= {"REAL_TOPIC": message.topic, "REAL_QID": "0"}
        else:
            properties.pop(WAIT, None)
        offset = len(self._halves) if transactional else self._ends[message.topic]
        stored = _stored(message, properties, offset, next(self._places), self.now_ms)
        queue = MessageQueue(message.topic, BROKER_NAME, 0)
        result = SendResult(SendStatus.SEND_OK, stored.msg_id, stored.offset_msg_id, queue, offset)
        state = State.UNKNOWN if transactional else State.COMMITTED
        record = Record(sender.group, stored, result, state, self.now_ms)
        self.records.append(record)
        if transactional:
            self._halves[message.topic, stored.msg_id, sender.group] = record
        elif due_ms > self.now_ms:
            self._seen.setdefault((stored.topic, stored.msg_id), record)  # one that waits is merged with, too
            heapq.heappush(self._delayed, (due_ms, len(self.records), record))
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

    def _show(self, record: Record, stored: StoredMessage) -> None:
        """Let consumers see a message."""
        self.visible.append(stored)
        self._ends[stored.topic] += 1
        self._seen.setdefault((stored.topic, stored.msg_id), record)

    def _commit(self, record: Record) -> None:
        """Store a half message once more, where consumers see it. Follows `halfmoon.broker.transactions.half`."""
        half = record.stored
        properties = {name: text for name, text in half.properties.items() if name != CHECK_TIMES}
        place = next(self._places)
        self._show(record, replace(
            half, properties=properties, queue_offset=self._ends[half.topic], physical_offset=place,
            offset_msg_id=_offset_id(place), sys_flag=int(LocalTransactionState.COMMIT), store_ms=self.now_ms,
            prepared_transaction_offset=half.physical_offset,
        ))  # fmt: skip

    def receive_decision(self, record: Record, *, commit: bool) -> None:
        """Take a decision that a publisher sent about a half message, unless it is to be lost on the way, or was cleared away."""
        with self.lock:
            if self._losing > 0 or self.down:
                self._losing -= self._losing > 0
            elif not record.cleared:
                self.decide(record, State.COMMITTED if commit else State.ROLLED_BACK)

    def decide(self, record: Record, state: State) -> None:
        """Take the decision that leads to a state. One that repeats or contradicts a final state is counted and changes nothing."""
        with self.lock:
            if record.state is state:
                self.repeats += 1
            elif record.state in FINAL:
                self.contradictions += 1
                log.warning("decision refused: event=%s decision=%s state=%s", record.id, state.value, record.state.value)
            else:
                record.state = state
                if state is State.COMMITTED:
                    self._commit(record)

    def in_state(self, state: State) -> list[Record]:
        """Records in a state, the oldest first."""
        with self.lock:
            return [record for record in self.records if record.state is state]


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


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in an empty context. A check or a consumer may block, or begin a loop: in a thread that runs one, another
    thread does it, while this one waits."""
    context = contextvars.Context()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return context.run(function, *arguments)
    with ThreadPoolExecutor(1, "halfmoon-bus") as thread:
        return thread.submit(context.run, function, *arguments).result()
