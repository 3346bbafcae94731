"""What happens in the demo, and whether it ends well: orders, messages, kills, and the count of everything afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

from halfmoon import Admin
from halfmoon.cli.demo.ledgers import DELIVERIES, ORDERS, TOPIC, Counts, connect, counts
from halfmoon.cli.demo.processes import Cast, DemoFailed
from halfmoon.cli.looking import FIRST, read, starts_and_ends
from halfmoon.errors import HalfmoonError

QUEUES = 4
DOWN_S = 1.0
"""How long the broker is away after a kill: long enough for orders to pile up."""

LATEST_S = 120.0
"""After this the demo gives up."""

LOOK_S = 0.05


class Ending(msgspec.Struct):
    """What the closing table says. ``killed`` are orders acknowledged before each kill, ``ready_ms`` how long each start took."""

    orders_written: int
    acknowledged: int
    in_the_log: int
    in_the_log_unique: int
    consumed: int
    consumed_unique: int
    lost_in_the_log: int
    lost_on_the_way: int
    wrong: int
    kills: int
    killed_at: list[int]
    ready_ms: list[int]
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether everything was written, acknowledged, kept and consumed."""
        everything = {self.orders_written, self.acknowledged, self.in_the_log_unique, self.consumed_unique}
        return len(everything) == 1 and not (self.lost_in_the_log or self.lost_on_the_way or self.wrong)


Watch = Callable[[str, Counts], None]
"""Told what happens now, and how far everybody is."""


class Play:
    """One performance. ``kills`` are spread over the orders; ``watch`` is told of everything."""

    def __init__(self, cast: Cast, *, orders: int, per_second: int, kills: int, watch: Watch) -> None:
        self._cast, self._orders, self._per_second, self._kills, self._watch = cast, orders, per_second, kills, watch
        self._written, self._delivered = connect(cast.directory, ORDERS), connect(cast.directory, DELIVERIES)
        self._begin = time.monotonic()
        self._ready_ms: list[int] = []
        self._killed_at: list[int] = []

    def run(self) -> Ending:
        """Let it happen and return how it ended. Raises DemoFailed when somebody does not do their part."""
        with closing(self._written), closing(self._delivered):
            self._watch("starting the broker", Counts(0, 0, 0))
            facts = self._start_broker(0, 0)
            nameserver: str = facts["nameserver"]
            ports = [int(facts[name].rpartition(":")[2]) for name in ("nameserver", "broker")]
            make_topic(nameserver)
            self._start_the_others(nameserver)
            for number in range(1, self._kills + 1):
                self._kill_and_restart(self._orders * number // (self._kills + 1), ports)
            self._until(lambda: self._cast.has_ended("order service"), "orders flow again" if self._kills else "orders flow")
            self._until(lambda: self._counts().consumed >= self._orders, "the consumer catches up")
            self._watch("counting what the log holds", self._counts())
            log = [message.body for message in read(nameserver, starts_and_ends(nameserver, TOPIC, FIRST))]
            self._cast.stop("consumer")
            self._cast.stop("broker")
            return self.count(log)

    def _start_broker(self, *ports: int) -> dict[str, Any]:
        begin = time.monotonic()
        facts = self._cast.start_broker(*ports)
        self._ready_ms.append(round((time.monotonic() - begin) * 1000))
        return facts

    def _start_the_others(self, nameserver: str) -> None:
        shared = ("--directory", str(self._cast.directory), "--nameserver", nameserver)
        self._cast.start("consumer", "halfmoon.cli.demo.deliveries", *shared)
        pace = ("--count", str(self._orders), "--per-second", str(self._per_second))
        self._cast.start("order service", "halfmoon.cli.demo.orders", *shared, *pace)

    def _kill_and_restart(self, acknowledged: int, ports: list[int]) -> None:
        self._until(lambda: self._counts().acknowledged >= acknowledged, "orders flow")
        self._cast.kill("broker")
        self._killed_at.append(self._counts().acknowledged)
        back = time.monotonic() + DOWN_S
        self._until(lambda: time.monotonic() >= back, "the broker is killed with -9")
        self._watch("the broker starts again", self._counts())
        self._start_broker(*ports)

    def _until(self, true: Callable[[], bool], what: str) -> None:
        self._watch(what, self._counts())
        while not true():
            self._cast.check("broker", "consumer", "order service")
            if time.monotonic() > self._begin + LATEST_S:
                raise DemoFailed(f"it took over {LATEST_S:.0f} s; the last act was: {what}, {self._counts()}")
            self._watch(what, self._counts())
            time.sleep(LOOK_S)

    def _counts(self) -> Counts:
        return counts(self._written, self._delivered)

    def count(self, log: list[bytes]) -> Ending:
        """Compare the databases with each other and with the bodies of all messages in the log."""
        orders = dict(self._written.execute("SELECT id, cents FROM orders"))
        acknowledged = {row[0] for row in self._written.execute("SELECT id FROM orders WHERE acknowledged IS NOT NULL")}
        consumed = {order: (cents, times) for order, cents, times in self._delivered.execute("SELECT * FROM deliveries")}
        stored = [json.loads(body) for body in log]
        stored_ids = {each["order"] for each in stored}
        wrong = sum(each["cents"] != orders.get(each["order"]) for each in stored)
        wrong += sum(cents != orders.get(order) for order, (cents, _) in consumed.items())
        return Ending(
            orders_written=len(orders),
            acknowledged=len(acknowledged),
            in_the_log=len(stored),
            in_the_log_unique=len(stored_ids),
            consumed=sum(times for _, times in consumed.values()),
            consumed_unique=len(consumed),
            lost_in_the_log=len(acknowledged - stored_ids),
            lost_on_the_way=len(acknowledged - consumed.keys()),
            wrong=wrong,
            kills=self._kills,
            killed_at=self._killed_at,
            ready_ms=self._ready_ms,
            seconds=round(time.monotonic() - self._begin, 1),
        )


def make_topic(nameserver: str) -> None:
    """Make the topic, and wait until the name server knows of it."""
    with Admin(nameserver=nameserver) as admin:
        deadline = time.monotonic() + 10
        while True:
            try:
                admin.create_topic(TOPIC, queue_count=QUEUES)
                admin.topic_route(TOPIC)
                return
            except HalfmoonError as exc:
                if time.monotonic() > deadline:
                    raise DemoFailed(f"the topic could not be made: {exc}") from exc
                time.sleep(LOOK_S)
