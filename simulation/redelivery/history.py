"""One simulated history of redelivery from a seed: messages that fail so and so often, consumers that die, faults, and the verdict.

verdict = simulate_redelivery(seed=7)
assert verdict.problems == []

Producers and consumers are our own client. Beside the faults of `Faults`, ``consumer`` kills a consumer and starts another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from halfmoon.client.core.consume.listener import ConsumeContext
from halfmoon.model import ConsumeFrom, ConsumeStatus, Message, SendResult, StoredMessage
from halfmoon.testing.clients import SimProducer, SimPushConsumer
from halfmoon.testing.cluster import Cluster
from halfmoon.wire.record import decode_record
from simulation.faults import Faults
from simulation.history import BROKER, FaultHistory
from simulation.ledger import Ledger
from simulation.redelivery.checkers import FOR_EVER, Dead, Handed, RedeliveryLedger, check_redelivery
from simulation.verdict import Verdict, judging

TOPIC, GROUP, QUEUES = "orders", "C_again", 2
LEVELS, LEVELS_MS = "1s 2s 1s 2s 2s 3s", (1000, 2000, 1000, 2000, 2000, 3000)
TIMES_MAX = 3
STEPS = 5
CLIENT: dict[str, Any] = {"heartbeat_ms": 1000, "request_timeout_ms": 1000, "route_refresh_ms": 5000, "persist_offsets_ms": 1000}
SETTLE_MS = 120_000
"""After the last fault everything is consumed or dead within this."""


class RedeliveryFaults(Faults):
    """The faults of a history; ``consumer`` is the history's own. Clocks do not step: how long a copy waited is judged by them."""

    DRAWN = ("kill", "power", "torn", "stop", "slow_disk", "failed_sync", "cut", "lose", "half_open", "nameserver", "consumer")
    KINDS = (*DRAWN, "stuck_disk", "full_disk")
    replace_consumer: Callable[[], None]

    def consumer(self) -> None:
        """Kill a consumer; another one takes its place."""
        self.replace_consumer()


@dataclass
class RedeliveryVerdict(Verdict):
    """What came of a history of redelivery."""

    workload = "redelivery"
    counts = "{acknowledged} acknowledged, {handed} handed over, {failed} failed, {dead} dead"
    acknowledged: int = 0
    handed: int = 0
    failed: int = 0
    dead: int = 0


def simulate_redelivery(
    seed: int, *, steps: int = STEPS, flush: str | None = None, kinds: tuple[str, ...] | None = None, **options: Any
) -> RedeliveryVerdict:
    """Run the history of a seed and judge it.

    ``steps`` is the number of faults; ``flush`` and ``kinds`` (of `RedeliveryFaults.KINDS`) are drawn from the seed when not given;
    ``options`` go to `Cluster`. What a core raises becomes a problem, as do errors that it logs.
    """
    chance = Random(f"redelivery {seed}")
    flush = flush or chance.choice(("sync", "async"))
    messages = Ledger(flush)
    ledger = RedeliveryLedger(messages, TOPIC, TIMES_MAX, LEVELS_MS)
    verdict = RedeliveryVerdict(seed, flush)
    options = {"brokers": chance.choice((1, 1, 2)), **options}
    with judging(verdict, messages, broker={**BROKER, "delay_levels": LEVELS}, **options) as cluster:
        _History(cluster, ledger, chance, kinds).judge(verdict, steps)
    verdict.acknowledged, verdict.handed, verdict.dead = len(ledger.acked), len(ledger.handed), len(ledger.dead)
    verdict.failed = sum(not one.good for one in ledger.handed)
    return verdict


class _History(FaultHistory):
    def __init__(self, cluster: Cluster, ledger: RedeliveryLedger, chance: Random, kinds: tuple[str, ...] | None) -> None:
        super().__init__(cluster, ledger.messages)
        self.ledger, self.chance = ledger, chance
        self.faults = RedeliveryFaults(cluster, ledger.messages, cluster.timeline.split("faults"), kinds=kinds)
        self.faults.replace_consumer = self._replace
        self.consumers: list[SimPushConsumer] = []
        self._fails = cluster.timeline.split("fails")
        self._number = 0

    def run(self, steps: int) -> list[str]:
        cluster = self.cluster
        self.create_topics(TOPIC, queues=QUEUES)
        for i in range(2):
            producer = SimProducer(cluster, f"producer-{i}", **CLIENT)
            sending = self.keep_sending(
                producer, f"p{i}", partial(self._message, f"p{i}"), self._stored, lambda random: random.randint(50, 400)
            )
            producer.driver.start(sending, f"p{i}")
        for _ in range(self.chance.randint(1, 2)):
            self._join()
        cluster.run(ms=500)
        self.strike(steps, (20, 2000), 1200)
        self.plan.closing = True
        cluster.run(ms=3000)
        if not cluster.timeline.run_until(self._settled, SETTLE_MS):
            cluster.timeline.note("history", "not everything is settled")
        cluster.run(ms=2000)
        self.ledger.dead = self._dead()
        return check_redelivery(self.ledger)

    def _settled(self) -> bool:
        """Whether every message was consumed or is dead; the dead are looked for now and then only, for it takes a while."""
        if self._waiting():
            return False
        good = {one.body for one in self.ledger.handed if one.good}
        spent = {one.body for one in self.ledger.handed if not one.good and (one.times >= TIMES_MAX or one.level < 0)}
        left = self.ledger.acked.keys() - good - spent
        # Given back by way of a send of its own it is dead one time earlier, or comes once more.
        last = {one.body for one in self.ledger.handed if one.times == TIMES_MAX - 1}
        return not left or (left <= last and left <= {one.body for one in self._dead()})

    def _waiting(self) -> bool:
        """Whether a message may still come again: the last failure of one is so recent that its copy may be on its way."""
        last = max((one.at_ms for one in self.ledger.handed), default=0)
        return self.cluster.timeline.now - last < max(LEVELS_MS) + 8_000

    # ---------------------------------------------------------------- users

    def _message(self, name: str, number: int, random: Random) -> Message:
        body = f"{name}/{number}".encode()
        self.ledger.fates[body] = random.choice((0, 0, 1, TIMES_MAX - 1, FOR_EVER))
        return Message(TOPIC, body)

    def _stored(self, message: Message, result: SendResult) -> None:
        self.ledger.acked[message.body] = (self.cluster.timeline.now, result.queue.broker_name)

    def _join(self) -> None:
        self._number += 1
        name = f"consumer-{self._number}"
        consumer = SimPushConsumer(
            self.cluster, TOPIC, self._listen, name=name, group=GROUP, consume_from=ConsumeFrom.FIRST_OFFSET,
            reconsume_max=TIMES_MAX, threads=3, **CLIENT,
        )  # fmt: skip
        self.consumers.append(consumer)

    def _replace(self) -> None:
        consumer = self.consumers.pop(self.chance.randrange(len(self.consumers)))
        self.cluster.timeline.note(consumer.name, "is killed")
        consumer.kill()
        self.cluster.network.kill(consumer.host)
        self._join()

    def _listen(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Fail as often as the message's fate says, and say why; now and then with a level of its own, or with none left."""
        [message] = messages
        body = bytes(message.body)
        good = message.reconsume_times >= self.ledger.fates.get(body, 0)
        if not good:
            context.delay_level = self._fails.choice((0, 0, 0, 0, 2)) if self._fails.random() > 0.05 else -1
            context.reason = f"fails as {message.reconsume_times}"
        self.ledger.handed.append(
            Handed(
                self.cluster.timeline.now, body, message.broker_name, message.offset_msg_id, "RETRY_TOPIC" in message.properties,
                message.reconsume_times, message.store_ms, good, context.delay_level, context.reason or "",
            )
        )  # fmt: skip
        return ConsumeStatus.CONSUME_SUCCESS if good else ConsumeStatus.RECONSUME_LATER

    # ---------------------------------------------------------------- the end

    def _dead(self) -> list[Dead]:
        dead = []
        for queue in self.contents(self.places([f"%DLQ%{GROUP}"], 1)).values():
            for seen in queue.messages.values():
                message = decode_record(memoryview(seen.record))
                properties = message.properties
                reason, origin = properties.get("RECONSUME_REASON", ""), properties.get("RETRY_TOPIC", "")
                dead.append(Dead(bytes(message.body), message.reconsume_times, origin, reason))
        return dead
