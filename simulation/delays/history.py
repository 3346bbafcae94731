"""One simulated history of delayed messages from a seed: levels, points in time, recalls, faults, and the verdict.

verdict = simulate_delays(seed=7)
assert verdict.problems == []

With power failures the flush is sync, so that nothing acknowledged may be lost; with kills alone nothing comes twice either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any
from zlib import crc32

from halfmoon.effects import Call, Now, Op, sleep
from halfmoon.errors import NetworkError
from halfmoon.model import UNIQ_KEY
from halfmoon.testing.cluster import BrokerNode, Cluster
from halfmoon.testing.requests import send_header
from halfmoon.wire.headers.delay import RecallMessage
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.record import decode_record
from simulation.delays.checkers import DelayLedger, Delivered, Wish, check_delays
from simulation.faults import HOUR_MS, Faults
from simulation.history import BROKER, FaultHistory
from simulation.ledger import Ledger
from simulation.verdict import Verdict, judging

TOPIC, QUEUES, SENDERS = "later", 3, 4
LEVELS, LEVELS_MS = "1s 2s 4s", (1000, 2000, 4000)
TIMED_MS_MAX = 8000
STEPS = 8


FAR_MS_MAX = 1_800_000
"""In histories in which a broker's clock is ahead by an hour for a moment, some messages are due within so long: they come then."""


class DelayFaults(Faults):
    """The faults of a history. A clock is never behind: when a message is due is judged by it."""

    DRAWN = ("kill", "torn", "stop", "slow_disk", "cut", "lose")
    KINDS = (*DRAWN, "power", "damage", "ahead")

    def ahead(self) -> None:
        """Let a broker's clock be ahead for a moment, if it is right; a broker that goes on stays ahead, so it starts anew."""
        broker = self._random.choice(self.cluster.brokers)
        if not broker.host.clock_ahead_ms:
            broker.host.step_clock(self._random.choice((2000, HOUR_MS)))
            self._later((100, 1500), partial(self._set_back, broker))

    def _set_back(self, broker: BrokerNode) -> None:
        self._note(broker, "kill")
        self.cluster.crash(broker)
        broker.host.step_clock(-broker.host.clock_ahead_ms)
        self._later((10, 500), partial(self._restart, broker))


@dataclass
class DelayVerdict(Verdict):
    """What came of a history of delays."""

    workload = "delays"
    counts = "{acknowledged} acknowledged, {delivered} delivered, {recalled} recalled"
    acknowledged: int = 0
    delivered: int = 0
    recalled: int = 0
    late_ms: int = 0
    """How late the last one was."""


def simulate_delays(
    seed: int, *, steps: int = STEPS, flush: str | None = None, kinds: tuple[str, ...] | None = None, **options: Any
) -> DelayVerdict:
    """Run the history of a seed and judge it; options as of `simulation.messages.history.simulate`."""
    chance = Random(f"delays {seed}")
    power = chance.random() < 0.3 if kinds is None else "power" in kinds
    flush = flush or ("sync" if power else chance.choice(("sync", "async")))
    if kinds is None and power and flush == "sync":
        kinds = ("power", chance.choice(DelayFaults.DRAWN))
    messages = Ledger(flush)
    ledger = DelayLedger(messages, once=not {"power", "damage"}.intersection(kinds or ()))
    verdict = DelayVerdict(seed, flush)
    with judging(verdict, messages, broker={**BROKER, "delay_levels": LEVELS}, **options) as cluster:
        _History(cluster, ledger, kinds).judge(verdict, steps)
    verdict.acknowledged = sum(wish.acked for wish in ledger.wishes.values())
    verdict.recalled = sum(wish.recalled for wish in ledger.wishes.values())
    verdict.delivered = len(ledger.delivered)
    return verdict


class _History(FaultHistory):
    def __init__(self, cluster: Cluster, ledger: DelayLedger, kinds: tuple[str, ...] | None) -> None:
        super().__init__(cluster, ledger.messages)
        self.ledger = ledger
        self.faults = DelayFaults(cluster, ledger.messages, cluster.timeline.split("faults"), kinds=kinds)

    def run(self, steps: int) -> list[str]:
        cluster = self.cluster
        self.create_topics(TOPIC, queues=QUEUES)
        for number in range(SENDERS):
            cluster.driver(f"sender-{number}").start(self._send(f"s{number}"), f"s{number}")
        cluster.run(ms=500)
        self.strike(steps, (20, 2500), 1300)
        self.plan.closing = True
        cluster.run(ms=TIMED_MS_MAX + 12_000)
        self.ledger.ended_ms = cluster.timeline.now
        for place, queue in self.contents(self.places([TOPIC], QUEUES)).items():
            for offset, seen in sorted(queue.messages.items()):
                message = decode_record(memoryview(seen.record))
                if (place, offset) in self.ledger.messages.spoilt and crc32(message.body) & 0x7FFFFFFF != message.body_crc:
                    continue  # its receiver sees that, too
                self.ledger.delivered.append(Delivered(bytes(message.body), place.queue_id, offset, message.store_ms))
        problems = check_delays(self.ledger)
        if "damage" in self.faults.kinds:
            for broker in cluster.brokers:
                cluster.stop(broker)
                problems += self.fsck_differs(broker)
        return problems

    # ---------------------------------------------------------------- users

    def _send(self, name: str) -> Op[None]:
        """Send messages one after the other, each again until it is acknowledged; recall some of them."""
        random, number = self.cluster.timeline.split(f"sends {name}"), 0
        [address] = self.plan.brokers.values()
        while not self.plan.closing:
            body, unique = f"{name}/{number}".encode(), f"{name}-{number}"
            now: int = yield Now()
            # A level counts from when the broker took the message, by a clock that may have been ahead.
            ahead = "ahead" in self.faults.kinds
            level = 0 if ahead else random.choice((0, 0, 1, 1, 2, 3))
            timed_ms_max = FAR_MS_MAX if ahead and random.random() < 0.1 else TIMED_MS_MAX
            due_ms = now + (LEVELS_MS[level - 1] if level else random.randint(1, timed_ms_max))
            wish = self.ledger.wishes[body] = Wish(name, number, random.randrange(QUEUES), level, due_ms)
            asked = {"DELAY": str(level)} if level else {"TIMER_DELIVER_MS": str(due_ms)}
            handle = yield from self._send_until_acked(address, wish, body, {UNIQ_KEY: unique, **asked}, random)
            if handle and random.random() < 0.3:
                yield from self._recall(address, wish, handle)
            number += 1
            yield from sleep(random.randint(0, 120))

    def _send_until_acked(self, address: str, wish: Wish, body: bytes, fields: dict[str, str], random: Random) -> Op[str | None]:
        header = send_header(SendMessageV2, TOPIC, wish.queue_id, (yield Now()), fields)
        for _ in range(8):
            wish.attempts += 1
            try:
                reply = yield Call(address, header, body, 3000)
            except NetworkError:
                yield from sleep(random.randint(5, 400))
            else:
                if reply.code == 0:
                    wish.acked = True
                    wish.acked_ms = self.cluster.timeline.now
                    answer: SendMessageReply = reply.header(SendMessageReply)
                    return answer.recall_handle
                yield from sleep(random.randint(20, 600))
        return None

    def _recall(self, address: str, wish: Wish, handle: str) -> Op[None]:
        wish.recall_tried = True
        try:
            reply = yield Call(address, RecallMessage(producer_group="senders", topic=TOPIC, recall_handle=handle), b"", 3000)
        except NetworkError:
            return
        if reply.code == 0:
            wish.recalled = True
        elif reply.code not in (1, 2, 14, 604):
            self.ledger.messages.unexpected.append(f"a recall was answered {reply.code}: {reply.remark}")
