"""What happens in the demo, and whether it ends well: orders, half messages, kills, Spark, and the count of it all."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from halfmoon import Admin
from halfmoon.cli.demo.ledgers import (
    COPIES,
    DELIVERIES,
    LARGE_CENTS,
    ORDERS,
    PAID,
    PLACED,
    REFUSED,
    REMINDERS,
    TOPIC,
    Counts,
    connect,
    counts,
)
from halfmoon.cli.demo.orders import wants_reminder
from halfmoon.cli.demo.pipeline import DRIVER, Brought, Driver, Half, Pipeline, compared
from halfmoon.cli.demo.processes import Cast, DemoFailed
from halfmoon.cli.shared.reading import FIRST, read, starts_and_ends
from halfmoon.errors import HalfmoonError, QueryNotFound

QUEUES = 4
DOWN_S = 1.0
"""How long the broker is away after a kill: long enough for orders to pile up."""

LATEST_S, SPARK_LATEST_S = 120.0, 300.0
"""After this the demo gives up, without Spark's part and in it."""

LOOK_S = 0.05

SERVICES = ("order service", "second order service")


class Ending(msgspec.Struct):
    """What the closing table says, a line an outcome. ``ready_ms``: how long each start of the broker took.

    Of paid and refused orders: how many the database has, how many of their half messages the broker committed or rolled back,
    how many of their messages it shows, and how many were delivered, each order once. ``in_doubt`` are orders without a decision,
    ``pending`` half messages without one. ``left_behind`` are half messages whose order was decided in another transaction, because
    the service or the broker was killed meanwhile; what no order explains is shown with them. ``by_check`` were decided by the
    answer to a check. ``wrong`` messages say something else than the order. ``large`` orders are paid ones that a filter chooses.
    Of the ``reminders`` that the service sent, how many the log shows and were delivered, each order once; how many came too early
    or for no reason; and how late the later half of them were at least. ``spark`` is what came of Spark's part; None: there was
    none, and ``no_spark`` says why.
    """

    paid: int
    paid_committed: int
    paid_visible: int
    paid_delivered: int
    refused: int
    refused_rolled_back: int
    refused_visible: int
    refused_delivered: int
    left_behind: int
    left_behind_rolled_back: int
    left_behind_visible: int
    left_behind_delivered: int
    in_doubt: int
    pending: int
    in_doubt_visible: int
    in_doubt_delivered: int
    by_check: int
    again_visible: int
    again_delivered: int
    wrong: int
    large: int
    large_visible: int
    large_delivered: int
    large_wrong: int
    reminders: int
    reminders_visible: int
    reminders_delivered: int
    reminders_wrong: int
    reminders_late_ms: int
    kills: int
    ready_ms: list[int]
    seconds: float
    spark: Pipeline | None = None
    no_spark: str = ""

    @property
    def paid_agrees(self) -> bool:
        """Whether every paid order was committed, is visible, was delivered, is in table and copies, and says the same."""
        same = self.paid == self.paid_committed == self.paid_visible == self.paid_delivered
        return same and not self.wrong and self._spark_has("paid", self.paid)

    @property
    def refused_agrees(self) -> bool:
        """Whether every refused order was rolled back, and none of them was ever seen."""
        seen = self.refused_visible or self.refused_delivered
        return self.refused == self.refused_rolled_back and not seen and self._spark_has("refused", 0)

    @property
    def left_behind_agrees(self) -> bool:
        """Whether half messages of transactions that never ended were rolled back, and no message belongs to no order."""
        seen = self.left_behind_visible or self.left_behind_delivered
        return self.left_behind == self.left_behind_rolled_back and not seen and self._spark_has("left_behind", 0)

    @property
    def in_doubt_agrees(self) -> bool:
        """Whether nothing is undecided on either side."""
        open = self.in_doubt or self.pending or self.in_doubt_visible or self.in_doubt_delivered
        return not open and self._spark_has("in_doubt", 0)

    @property
    def large_agrees(self) -> bool:
        """Whether the filter chose all large orders, and nothing else."""
        same = self.large == self.large_visible == self.large_delivered
        return same and not self.large_wrong and self._spark_has("large", self.large)

    @property
    def reminders_agree(self) -> bool:
        """Whether every reminder came, and none before its time."""
        same = self.reminders == self.reminders_visible == self.reminders_delivered
        return same and not self.reminders_wrong and self._spark_has("reminders", self.reminders)

    @property
    def agrees(self) -> bool:
        """Whether all of it agrees."""
        plain = self.paid_agrees and self.refused_agrees and self.left_behind_agrees and self.in_doubt_agrees
        return plain and self.large_agrees and self.reminders_agree and (self.spark is None or self.spark.agrees)

    def _spark_has(self, outcome: str, count: int) -> bool:
        return self.spark is None or self.spark.has(outcome, count)


Watch = Callable[[str, Counts], None]
"""Told what happens now, and how far everybody is."""


class Play:
    """One performance. ``kills`` of the broker are spread over the orders; where there are any, the order service is killed too,
    once, and a second one of its group takes over. ``watch`` is told of everything. With a ``picture``, the file to draw, Spark
    plays its part; else ``no_spark`` says why not."""

    def __init__(
        self, cast: Cast, *, orders: int, per_second: int, kills: int, watch: Watch, picture: Path | None = None, no_spark: str = ""
    ) -> None:
        self._cast, self._orders, self._per_second, self._kills, self._watch = cast, orders, per_second, kills, watch
        self._decided, self._delivered = connect(cast.directory, ORDERS), connect(cast.directory, DELIVERIES)
        self._picture, self._no_spark = picture, no_spark
        self._begin = time.monotonic()
        self._latest = self._begin + LATEST_S
        self._ready_ms: list[int] = []
        self._service = SERVICES[0]

    def run(self) -> Ending:
        """Let it happen and return how it ended. Raises DemoFailed when somebody does not do their part."""
        with closing(self._decided), closing(self._delivered):
            self._watch("starting the broker", Counts(0, 0, 0))
            facts = self._start_broker(0, 0)
            nameserver: str = facts["nameserver"]
            ports = [int(facts[name].rpartition(":")[2]) for name in ("nameserver", "broker")]
            make_topic(nameserver, TOPIC)
            make_topic(nameserver, REMINDERS)
            self._cast.start("consumer", "halfmoon.cli.demo.deliveries", *self._shared(nameserver))
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
                self._until(self._all_told, "reminders fall due")
                self._watch("counting what the broker holds", self._counts())
                halves = all_halves(admin)
                log, reminders = bodies(nameserver, TOPIC), bodies(nameserver, REMINDERS)
                still_pending = pending(admin)
                for name in (self._service, "consumer"):
                    self._cast.stop(name)
                brought = None if self._picture is None else self._spark(admin, nameserver, len(log), self._picture)
            self._cast.stop("broker")
            return self.count(log, halves, still_pending, reminders, brought)

    def _spark(self, admin: Admin, nameserver: str, total: int, picture: Path) -> Brought | None:
        """Have Spark copy the events, fill its table and audit. None: it cannot, and `_no_spark` says why."""
        begin = time.monotonic()
        self._latest = begin + SPARK_LATEST_S
        make_topic(nameserver, COPIES)
        driver = Driver(self._cast, nameserver, total, picture)
        came = driver.perform(lambda: sum(ends.max_offset for ends in admin.topic_stats(COPIES).values()), self._until)
        if isinstance(came, str):
            self._no_spark = came
            return None
        self._watch("counting what Spark made of it", self._counts())
        copies = bodies(nameserver, COPIES)
        return Brought(driver.rows(), copies, *came, seconds=round(time.monotonic() - begin, 1))

    def _start_broker(self, *ports: int) -> dict[str, Any]:
        begin = time.monotonic()
        facts = self._cast.start_broker(*ports)
        self._ready_ms.append(round((time.monotonic() - begin) * 1000))
        return facts

    def _shared(self, nameserver: str) -> tuple[str, ...]:
        return ("--directory", str(self._cast.directory), "--nameserver", nameserver)

    def _start_service(self, nameserver: str) -> None:
        pace = ("--count", str(self._orders), "--per-second", str(self._per_second))
        self._cast.start(self._service, "halfmoon.cli.demo.orders", *self._shared(nameserver), *pace)

    def _kill_the_service(self, nameserver: str, decided: int) -> None:
        self._until(lambda: self._counts().decided >= decided, "orders flow")
        self._cast.kill(self._service)
        self._watch("the order service is killed with -9", self._counts())
        self._service = SERVICES[1]
        self._start_service(nameserver)
        at = self._counts().decided
        self._until(lambda: self._counts().decided > at, "another of its group takes over")

    def _kill_the_broker(self, decided: int, ports: list[int]) -> None:
        self._until(lambda: self._counts().decided >= decided, "orders flow again")
        self._cast.kill("broker")
        back = time.monotonic() + DOWN_S
        self._until(lambda: time.monotonic() >= back, "the broker is killed with -9")
        self._watch("the broker starts again", self._counts())
        self._start_broker(*ports)

    def _until(self, true: Callable[[], bool], what: str) -> None:
        self._watch(what, self._counts())
        while not true():
            self._cast.check("broker", "consumer", self._service, DRIVER)
            if time.monotonic() > self._latest:
                raise DemoFailed(f"it took over {self._latest - self._begin:.0f} s; the last act was: {what}, {self._counts()}")
            self._watch(what, self._counts())
            time.sleep(LOOK_S)

    def _counts(self) -> Counts:
        return counts(self._decided, self._delivered)

    def _all_told(self) -> bool:
        """Whether all reminders were sent, and these and the large orders were delivered."""
        paid = self._decided.execute("SELECT id, cents FROM orders WHERE state = ?", (PAID,)).fetchall()
        sent = self._rows(self._decided, "reminders")
        wanted = {order for order, _ in paid if wants_reminder(int(order[2:]))}
        large = {order for order, cents in paid if cents > LARGE_CENTS}
        return wanted <= sent and sent <= self._rows(self._delivered, "reminders") and large <= self._rows(self._delivered, "large")

    @staticmethod
    def _rows(database: sqlite3.Connection, table: str) -> set[str]:
        return {row[0] for row in database.execute(f"SELECT id FROM {table}")}

    def count(
        self,
        log: list[bytes],
        halves: Sequence[Half],
        still_pending: int,
        reminders: Sequence[bytes] = (),
        brought: Brought | None = None,
    ) -> Ending:
        """Compare the databases with each other, with the broker's half messages, with the bodies of all that is visible, and with
        what Spark brought."""
        rows = self._decided.execute("SELECT id, cents, state, tx FROM orders").fetchall()
        cents_of = {order: cents for order, cents, _, _ in rows}
        orders = {state: {row[0] for row in rows if row[2] == state} for state in (PLACED, PAID, REFUSED)}
        transactions = {state: {row[3] for row in rows if row[2] == state} for state in (PAID, REFUSED)}
        delivered = {order: (cents, times) for order, cents, times in self._delivered.execute("SELECT * FROM deliveries")}
        stored = [json.loads(body) for body in log]
        visible = {each["order"] for each in stored}
        wrong = sum(each["cents"] != cents_of.get(each["order"]) for each in stored)
        wrong += sum(cents != cents_of.get(order) for order, (cents, _) in delivered.items())
        states: dict[str, list[str]] = {}
        for half in halves:
            states.setdefault(half.msg_id, []).append(half.state)
        large = {order for order in orders[PAID] if cents_of[order] > LARGE_CENTS}
        given = self._rows(self._delivered, "large")
        sent = self._rows(self._decided, "reminders")
        told = dict(self._delivered.execute("SELECT id, late_ms FROM reminders"))
        late = sorted(told.values())
        behind = [each for tx, each in states.items() if tx not in transactions[PAID] | transactions[REFUSED]]
        return Ending(
            paid=len(orders[PAID]),
            paid_committed=sum(states.get(tx, []).count("COMMITTED") > 0 for tx in transactions[PAID]),
            paid_visible=len(visible & orders[PAID]),
            paid_delivered=len(delivered.keys() & orders[PAID]),
            refused=len(orders[REFUSED]),
            refused_rolled_back=sum(set(states.get(tx, [])) == {"ROLLED_BACK"} for tx in transactions[REFUSED]),
            refused_visible=len(visible & orders[REFUSED]),
            refused_delivered=len(delivered.keys() & orders[REFUSED]),
            left_behind=sum(map(len, behind)),
            left_behind_rolled_back=sum(each.count("ROLLED_BACK") for each in behind),
            left_behind_visible=len(visible - cents_of.keys()),
            left_behind_delivered=len(delivered.keys() - cents_of.keys()),
            in_doubt=len(orders[PLACED]),
            pending=still_pending,
            by_check=sum(half.last_answer in ("COMMIT", "ROLLBACK") for half in halves),
            again_visible=len(stored) - len(visible),
            again_delivered=sum(times for _, times in delivered.values()) - len(delivered),
            in_doubt_visible=len(visible & orders[PLACED]),
            in_doubt_delivered=len(delivered.keys() & orders[PLACED]),
            wrong=wrong,
            large=len(large),
            large_visible=sum(each["cents"] > LARGE_CENTS for each in {each["order"]: each for each in stored}.values()),
            large_delivered=len(given & large),
            large_wrong=len(given - large),
            reminders=len(sent),
            reminders_visible=len({json.loads(body)["order"] for body in reminders}),
            reminders_delivered=len(told.keys() & sent),
            reminders_wrong=len(told.keys() - orders[PAID]) + sum(late_ms < 0 for late_ms in late),
            reminders_late_ms=late[len(late) // 2] if late else 0,
            kills=self._kills,
            ready_ms=self._ready_ms,
            seconds=round(time.monotonic() - self._begin, 1),
            spark=None if brought is None else compared(brought, log, reminders, halves, orders),
            no_spark=self._no_spark,
        )


def pending(admin: Admin) -> int:
    """Return how many half messages are undecided."""
    return sum(each.pending_count for each in admin.transaction_stats())


def all_halves(admin: Admin) -> list[Half]:
    """Return every half message, decided or not, as the broker's table has it."""
    found: list[Half] = []
    while True:
        try:
            found.append(admin.transaction(len(found)))
        except QueryNotFound:
            return found


def bodies(nameserver: str, topic: str) -> list[bytes]:
    """Return what all messages of a topic hold."""
    return [message.body for message in read(nameserver, starts_and_ends(nameserver, topic, FIRST))]


def make_topic(nameserver: str, topic: str) -> None:
    """Make a topic, and wait until the name server knows of it."""
    with Admin(nameserver=nameserver) as admin:
        deadline = time.monotonic() + 10
        while True:
            try:
                admin.create_topic(topic, queue_count=QUEUES)
                admin.topic_route(topic)
                return
            except HalfmoonError as exc:
                if time.monotonic() > deadline:
                    raise DemoFailed(f"the topic could not be made: {exc}") from exc
                time.sleep(LOOK_S)
