"""The course of the demo: orders, half messages, kills, and Spark. `halfmoon.cli.demo.outcome` counts what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from halfmoon import Admin
from halfmoon.cli.demo.ledgers import (
    COPIES,
    DELIVERIES,
    LARGE_CENTS,
    ORDERS,
    PAID,
    REMINDERS,
    TOPIC,
    Counts,
    connect,
    counts,
    ids,
)
from halfmoon.cli.demo.orders import wants_reminder
from halfmoon.cli.demo.outcome import Held, Outcome, books, counted
from halfmoon.cli.demo.pipeline import DRIVER, Driver, Half, SparkResults
from halfmoon.cli.demo.processes import DemoFailed, Processes
from halfmoon.cli.shared.reading import FIRST, read, starts_and_ends
from halfmoon.errors import HalfmoonError, QueryNotFound

QUEUES = 4
DOWN_S = 1.0
"""How long the broker is down after a kill: long enough for orders to pile up."""

LATEST_S, SPARK_LATEST_S = 120.0, 300.0
"""How long the demo may take at most: until Spark begins, and Spark itself."""

LOOK_S = 0.05

SERVICES = ("order service", "second order service")


Watch = Callable[[str, Counts], None]
"""Called with what happens now, and how many orders were paid, refused and delivered so far."""


class Demo:
    """One run. The broker is killed ``kills`` times, spread over the orders; unless that is 0, the order service is killed once,
    and a second one of its group takes over. ``watch`` is called at every step. With a ``picture``, the file to draw, Spark takes
    part; else ``no_spark`` says why not."""

    def __init__(
        self,
        processes: Processes,
        *,
        orders: int,
        per_second: int,
        kills: int,
        watch: Watch,
        picture: Path | None = None,
        no_spark: str = "",
    ) -> None:
        self._processes, self._orders, self._per_second, self._kills, self._watch = processes, orders, per_second, kills, watch
        self._orders_database, self._deliveries_database = (
            connect(processes.directory, ORDERS),
            connect(processes.directory, DELIVERIES),
        )
        self._picture, self._no_spark = picture, no_spark
        self._begin = time.monotonic()
        self._latest = self._begin + LATEST_S
        self._ready_ms: list[int] = []
        self._service = SERVICES[0]

    def run(self) -> Outcome:
        """Run everything and return the outcome. Raises DemoFailed when a process fails or takes too long."""
        with closing(self._orders_database), closing(self._deliveries_database):
            self._watch("starting the broker", Counts(0, 0, 0))
            facts = self._start_broker(0, 0)
            nameserver: str = facts["nameserver"]
            ports = [int(facts[name].rpartition(":")[2]) for name in ("nameserver", "broker")]
            make_topic(nameserver, TOPIC)
            make_topic(nameserver, REMINDERS)
            self._processes.start("consumer", "halfmoon.cli.demo.deliveries", *self._shared(nameserver))
            self._start_service(nameserver)
            if self._kills:
                self._kill_the_service(nameserver, self._orders // 4)
            for number in range(1, self._kills + 1):
                self._kill_the_broker(self._orders // 4 + self._orders * 3 * number // (4 * (self._kills + 1)), ports)
            again = " again" if self._kills else ""
            self._until(lambda: self._counts().decided >= self._orders, f"orders flow{again}")
            with Admin(nameserver=nameserver) as admin:
                self._until(lambda: not pending(admin), "checks decide what was left")
                self._until(lambda: self._counts().delivered >= self._counts().paid, "the consumer catches up")
                self._until(self._all_delivered, "reminders fall due")
                self._watch("counting what the broker holds", self._counts())
                halves, log = all_halves(admin), bodies(nameserver, TOPIC)
                held = Held(log, halves, pending(admin), bodies(nameserver, REMINDERS))
                for name in (self._service, "consumer"):
                    self._processes.stop(name)
                spark = None if self._picture is None else self._run_spark(admin, nameserver, len(log), self._picture)
            self._processes.stop("broker")
            return Outcome(
                **counted(books(self._orders_database, self._deliveries_database), held, spark),
                kills=self._kills,
                ready_ms=self._ready_ms,
                seconds=round(time.monotonic() - self._begin, 1),
                no_spark=self._no_spark,
            )

    def _run_spark(self, admin: Admin, nameserver: str, total: int, picture: Path) -> SparkResults | None:
        """Have Spark copy the events, fill its table and audit. None: Spark is not there, and `_no_spark` says why."""
        begin = time.monotonic()
        self._latest = begin + SPARK_LATEST_S
        make_topic(nameserver, COPIES)
        driver = Driver(self._processes, nameserver, total, picture)
        result = driver.perform(lambda: sum(ends.max_offset for ends in admin.topic_stats(COPIES).values()), self._until)
        if isinstance(result, str):
            self._no_spark = result
            return None
        self._watch("counting what Spark wrote", self._counts())
        copies = bodies(nameserver, COPIES)
        return SparkResults(driver.rows(), copies, *result, seconds=round(time.monotonic() - begin, 1))

    def _start_broker(self, *ports: int) -> dict[str, Any]:
        begin = time.monotonic()
        facts = self._processes.start_broker(*ports)
        self._ready_ms.append(round((time.monotonic() - begin) * 1000))
        return facts

    def _shared(self, nameserver: str) -> tuple[str, ...]:
        return ("--directory", str(self._processes.directory), "--nameserver", nameserver)

    def _start_service(self, nameserver: str) -> None:
        pace = ("--count", str(self._orders), "--per-second", str(self._per_second))
        self._processes.start(self._service, "halfmoon.cli.demo.orders", *self._shared(nameserver), *pace)

    def _kill_the_service(self, nameserver: str, decided: int) -> None:
        self._until(lambda: self._counts().decided >= decided, "orders flow")
        self._processes.kill(self._service)
        self._watch("the order service is killed with -9", self._counts())
        self._service = SERVICES[1]
        self._start_service(nameserver)
        at = self._counts().decided
        self._until(lambda: self._counts().decided > at, "another of its group takes over")

    def _kill_the_broker(self, decided: int, ports: list[int]) -> None:
        self._until(lambda: self._counts().decided >= decided, "orders flow again")
        self._processes.kill("broker")
        back = time.monotonic() + DOWN_S
        self._until(lambda: time.monotonic() >= back, "the broker is killed with -9")
        self._watch("the broker starts again", self._counts())
        self._start_broker(*ports)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        self._watch(what, self._counts())
        while not condition():
            self._processes.check("broker", "consumer", self._service, DRIVER)
            if time.monotonic() > self._latest:
                raise DemoFailed(f"it took over {self._latest - self._begin:.0f} s; the last step was: {what}, {self._counts()}")
            self._watch(what, self._counts())
            time.sleep(LOOK_S)

    def _counts(self) -> Counts:
        return counts(self._orders_database, self._deliveries_database)

    def _all_delivered(self) -> bool:
        """Whether all reminders were sent, and they and the large orders were delivered."""
        paid = self._orders_database.execute("SELECT id, cents FROM orders WHERE state = ?", (PAID,)).fetchall()
        sent = ids(self._orders_database, "reminders")
        wanted = {order for order, _ in paid if wants_reminder(int(order[2:]))}
        large = {order for order, cents in paid if cents > LARGE_CENTS}
        reminded, audited = ids(self._deliveries_database, "reminders"), ids(self._deliveries_database, "large")
        return wanted <= sent and sent <= reminded and large <= audited


def pending(admin: Admin) -> int:
    """Return how many half messages are undecided."""
    return sum(stats.pending_count for stats in admin.transaction_stats())


def all_halves(admin: Admin) -> list[Half]:
    """Return every half message, decided or not, as the broker's table has it."""
    halves: list[Half] = []
    while True:
        try:
            halves.append(admin.transaction(len(halves)))
        except QueryNotFound:
            return halves


def bodies(nameserver: str, topic: str) -> list[bytes]:
    """Return the bodies of all messages of a topic."""
    return [message.body for message in read(nameserver, starts_and_ends(nameserver, topic, FIRST))]


def make_topic(nameserver: str, topic: str) -> None:
    """Create a topic, and wait until the name server knows it."""
    with Admin(nameserver=nameserver) as admin:
        deadline = time.monotonic() + 10
        while True:
            try:
                admin.create_topic(topic, queue_count=QUEUES)
                admin.topic_route(topic)
                return
            except HalfmoonError as exc:
                if time.monotonic() > deadline:
                    raise DemoFailed(f"the topic could not be created: {exc}") from exc
                time.sleep(LOOK_S)
