"""A slave knows what a master of RocketMQ 5 delivered of the messages for a point in time, once its log has it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies.copied_timer import CopiedTimer
from halfmoon.broker.delay.progress import TIMER_PATH
from halfmoon.broker.names import TIMER_TOPIC
from halfmoon.effects import Call, Sleep
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import KVTable, TimerCheckpoint, TimerOffset, from_json, to_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.delay import GetTimerCheckPoint
from tests.broker.talk import START_MS, Talk
from tests.store.driving import draft

MASTER = "10.0.0.1:10911"
DUE_MS = START_MS + 60_000


class Asked:
    """The timer of a log with a message for each of some properties. Its master answers ``checkpoint``; its log ends at ``end``."""

    def __init__(self, *properties: str) -> None:
        self.talk, self.calls, self.saved = Talk("store", disk=SimDisk(Random(3))), list[type](), list[TimerOffset]()
        for each in properties:
            text = f"REAL_TOPIC\x01T\x02REAL_QID\x010\x02TIMER_OUT_MS\x01{DUE_MS}\x02{each}"
            self.talk.broker.store.append(TIMER_TOPIC, 0, [draft(b"later", text.encode(), tag=DUE_MS)], START_MS)
        self.talk.turn()
        self.end, self.checkpoint = self.talk.broker.store.end_offset, TimerCheckpoint(DUE_MS, 0, 1, 1).encode()
        self.code = 0
        self.timer = CopiedTimer(self.talk.broker.store, self._save)

    def _save(self, path: str, data: bytes) -> None:
        assert path == TIMER_PATH
        self.saved.append(from_json(TimerOffset, data))

    def run(self, operation: Any) -> Any:
        """Run an operation to its end; return its result."""
        reply = None
        while True:
            try:
                effect = operation.send(reply)
            except StopIteration as stop:
                return stop.value
            reply = None if isinstance(effect, Sleep) else self._reply(effect)

    def _reply(self, effect: Any) -> Command:
        assert isinstance(effect, Call)
        self.calls.append(type(effect.request))
        if isinstance(effect.request, GetTimerCheckPoint):
            return Command(code=self.code, flag=1, body=self.checkpoint)
        return Command(code=0, flag=1, body=to_json(KVTable({"commitLogMaxOffset": str(self.end)})))


def test_a_reply_counts_once_the_log_has_what_it_speaks_of() -> None:
    asked = Asked("")
    asked.end += 1
    asked.run(asked.timer.ask(MASTER))
    asked.timer.settle()
    assert (asked.timer.waits, asked.saved) == (True, [])
    asked.run(asked.timer.ask(MASTER))
    assert asked.calls.count(GetTimerCheckPoint) == 1, "the reply that waits is not replaced"
    asked.talk.send("T", b"more")
    asked.timer.settle()
    [saved] = asked.saved
    assert (asked.timer.waits, saved.due_ms, saved.low) == (False, DUE_MS - 1, 0)
    assert saved.marks == [(1, DUE_MS - 1, saved.offset)]


def test_a_master_without_such_messages_is_not_asked() -> None:
    asked = Asked()
    asked.run(asked.timer.ask(MASTER))
    assert (asked.calls, asked.saved, asked.run(asked.timer.obstacle())) == ([], [], None)


def test_a_master_that_does_not_know_the_request_is_an_obstacle() -> None:
    asked = Asked("")
    asked.code = 3
    asked.run(asked.timer.ask(MASTER))
    assert asked.saved == []
    assert asked.run(asked.timer.obstacle()) == "the master does not say which of them it has delivered"


def test_a_reply_that_makes_no_sense_is_an_obstacle_and_none_to_copying() -> None:
    asked = Asked("")
    asked.checkpoint = b"?"
    asked.run(asked.timer.ask(MASTER))
    assert asked.saved == []
    assert asked.run(asked.timer.obstacle()) == "the master does not say which of them it has delivered"


@pytest.mark.parametrize(
    "records", [("", "", "TIMER_ROLL_TIMES\x011\x02"), ("UNIQ_KEY\x01u\x02", "", "TIMER_DEL_UNIQKEY\x01T+u\x02")]
)
@pytest.mark.parametrize(
    ("read_ms", "queue_offset", "settled"), [(DUE_MS, 3, False), (DUE_MS + 1, 3, True), (DUE_MS + 1, 2, False)]
)
def test_records_about_earlier_ones_are_an_obstacle_while_they_wait(
    records: tuple[str, ...], read_ms: int, queue_offset: int, settled: bool
) -> None:
    asked = Asked(*records)
    asked.checkpoint = TimerCheckpoint(read_ms, 0, queue_offset, queue_offset).encode()
    asked.run(asked.timer.ask(MASTER))
    reason = "the master has cancelled some, or stored them again"
    assert asked.run(asked.timer.obstacle()) == (None if settled else reason)
