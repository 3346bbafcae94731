"""`CopiedTimer`: which messages for a point in time a master of RocketMQ 5 delivered, for a broker that starts here.

The log does not say it, the master does (60). Its reply counts once this log has all that the master's had then, so nothing that it
calls delivered is missing here; what was delivered since then is delivered again. Follows SlaveSynchronize (RocketMQ 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.broker.copies.asking import answer, end_of_log
from halfmoon.broker.delay.progress import TIMER_PATH
from halfmoon.broker.delay.timer import CANCEL_KEY, ROLLS
from halfmoon.broker.names import TIMER_TOPIC
from halfmoon.effects import Op, sleep
from halfmoon.errors import BrokerError, PeerError
from halfmoon.hot import property_of
from halfmoon.store.entries import entries_at
from halfmoon.store.records import whole_record
from halfmoon.store.store import Store
from halfmoon.wire.bodies import TimerCheckpoint, TimerOffset, to_json
from halfmoon.wire.headers.delay import GetTimerCheckPoint

_AT_ONCE = 1024
_LAST = 2**62


class CopiedTimer:
    """Progress of a master's timer. ``save`` takes the table of a broker: the path of its file, and its content."""

    def __init__(self, store: Store, save: Callable[[str, bytes], None]) -> None:
        self._store, self._save = store, save
        self._waiting: tuple[int, TimerCheckpoint] | None = None
        """A reply, and the end that this log must have come to before it counts."""
        self._known: TimerCheckpoint | None = None

    @property
    def waits(self) -> bool:
        """Return whether a reply waits for log that is not copied yet."""
        return self._waiting is not None

    def ask(self, address: str) -> Op[None]:
        """Ask a master how far it is, if there are such messages and no reply waits. Raises HalfmoonError."""
        if self._waiting is None and self._store.queue_max(TIMER_TOPIC, 0):
            try:
                body = (yield from answer(address, GetTimerCheckPoint())).body
                checkpoint = TimerCheckpoint.decode(body)
            except (BrokerError, PeerError):  # older than 5.0, without a timer, or newer than is known here
                return
            self._waiting = (yield from end_of_log(address)), checkpoint
        self.settle()

    def settle(self) -> None:
        """Save the reply that waits, if this log has what it speaks of."""
        if self._waiting is None or self._store.end_offset < self._waiting[0]:
            return
        self._known, self._waiting = self._waiting[1], None
        due_ms, end = self._known.read_ms - 1, self._known.queue_offset
        self._save(TIMER_PATH, to_json(TimerOffset(due_ms=due_ms, offset=_LAST, marks=[(end, due_ms, _LAST)])))

    def obstacle(self) -> Op[str | None]:
        """Return why a broker here would deliver messages that the master did, or cancelled; None: it would not."""
        store, known = self._store, self._known
        at, end = store.queue_min(TIMER_TOPIC, 0), store.queue_max(TIMER_TOPIC, 0)
        if at < end and known is None:
            return "the master does not say which of them it has delivered"
        while known is not None and at < end:
            entries = entries_at(store, TIMER_TOPIC, 0, at, _AT_ONCE)
            for entry in entries:
                waits = entry.size and (entry.tag_code >= known.read_ms or entry.queue_offset >= known.queue_offset)
                record = store.record(entry.physical_offset, entry.size) if waits else None
                if record is not None and _is_another(whole_record(record).properties):
                    return "the master has cancelled some, or stored them again"
            at = entries[-1].queue_offset + 1 if entries else end
            yield from sleep(1)
        return None


def _is_another(properties: bytes) -> bool:
    """Return whether a record replaces or cancels an earlier one, as 5.x writes it; a timer of Halfmoon would deliver both."""
    return any(property_of(properties, name.encode()) is not None for name in (ROLLS, CANCEL_KEY))
