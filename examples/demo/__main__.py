"""Course of the demo: orders, half messages, kills, Spark, and the closing table. Exit code 1 where something disagrees."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from count import Found, Half, Spark, again_visible, rows, spark_faults, states_at_broker
from ledgers import COPIES, DELIVERIES, LARGE_CENTS, ORDERS, PAID, REMINDERS, TOPIC, Counts, connect, counts, ids
from orders import wants_reminder
from processes import DemoFailed, Processes, Stopped

from halfmoon import Admin, BrokerError, HalfmoonError, PullConsumer

DOWN_S = 1.0
"""Time that the broker is down after a kill: long enough for orders to pile up."""
LATEST_S, SPARK_LATEST_S = 120.0, 300.0
"""Time limits of the demo: until Spark begins, and of Spark itself."""
LOOK_S = 0.05
BATCHES = 12
"""Batches of the stream of the first Spark driver, one a second."""


class Demo:
    """One run: the broker is killed ``kills`` times, and unless that is 0 the order service once."""

    def __init__(self, processes: Processes, given: argparse.Namespace) -> None:
        self.processes, self.given = processes, given
        self.orders, self.deliveries = connect(processes.directory, ORDERS), connect(processes.directory, DELIVERIES)
        self.begin = time.monotonic()
        self.latest = self.begin + LATEST_S
        self.ready_ms: list[int] = []
        self.service = "order service"
        self.no_spark = "" if given.spark else "it was not asked for"
        self._step = ""

    def run(self) -> Found:
        """Run everything; return what is there at the end. Raises DemoFailed when a process fails or takes too long."""
        number, kills = self.given.orders, self.given.kills
        self.show("starting the broker")
        facts = self._start_broker(0, 0)
        self.nameserver = facts["nameserver"]
        ports = [int(facts[name].rpartition(":")[2]) for name in ("nameserver", "broker")]
        for topic in (TOPIC, REMINDERS, COPIES):
            make_topic(self.nameserver, topic)
        self._start("consumer", "deliveries.py")
        self._start_service()
        if kills:
            self._kill_the_service(number // 4)
        for kill in range(1, kills + 1):
            self._kill_the_broker(number // 4 + number * 3 * kill // (4 * (kills + 1)), ports)
        self.until(lambda: self._decided() >= number, "orders flow again" if kills else "orders flow")
        with Admin(nameserver=self.nameserver) as admin:
            self.until(lambda: not pending(admin), "checks decide what was left")
            self.until(lambda: self.counts().delivered >= self.counts().paid, "the consumer catches up")
            self.until(self._all_delivered, "reminders fall due")
            self.show("counting what the broker holds")
            found = self._found(admin)
            for name in (self.service, "consumer"):
                self.processes.stop(name)
            return found if self.no_spark else found._replace(spark=self._run_spark(admin, len(found.log)))

    def _start(self, name: str, script: str, *more: str) -> None:
        self.processes.start(name, script, "--directory", str(self.processes.directory), "--nameserver", self.nameserver, *more)

    def _start_broker(self, *ports: int) -> dict[str, Any]:
        begin = time.monotonic()
        facts = self.processes.start_broker(*ports)
        self.ready_ms.append(round((time.monotonic() - begin) * 1000))
        return facts

    def _start_service(self) -> None:
        self._start(self.service, "orders.py", "--count", str(self.given.orders), "--per-second", str(self.given.per_second))

    def _kill_the_service(self, decided: int) -> None:
        self.until(lambda: self._decided() >= decided, "orders flow")
        self.processes.kill(self.service)
        self.show("the order service is killed with -9")
        self.service = "second order service"
        self._start_service()
        at = self._decided()
        self.until(lambda: self._decided() > at, "another of its group takes over")

    def _kill_the_broker(self, decided: int, ports: list[int]) -> None:
        self.until(lambda: self._decided() >= decided, "orders flow again")
        self.processes.kill("broker")
        back = time.monotonic() + DOWN_S
        self.until(lambda: time.monotonic() >= back, "the broker is killed with -9")
        self.show("the broker starts again")
        self._start_broker(*ports)

    def _run_spark(self, admin: Admin, total: int) -> Spark | None:
        """Have Spark copy the events, be killed, go on, fill its tables and audit. None: it is not there; `no_spark` says why."""
        self.latest = time.monotonic() + SPARK_LATEST_S
        batch = max(1, total // BATCHES)
        self._start("Spark driver", "spark_driver.py", "--picture", str(self.given.plot), "--batch", str(batch))

        def copied() -> int:
            return sum(ends.max_offset for ends in admin.topic_stats(COPIES).values())

        self.until(lambda: self._driver("missing") or copied() >= max(1, total // 3), "Spark copies the topic, exactly once")
        if missing := self._driver("missing"):
            self.no_spark = str(missing["missing"])
            return None
        self.processes.kill("Spark driver")
        killed_at = copied()
        self.show("the Spark driver is killed with -9")
        more = ("--batch", str(4 * batch), "--to-end")
        self._start("Spark driver", "spark_driver.py", "--picture", str(self.given.plot), *more)
        self.until(lambda: self._driver("copied"), "a second driver goes on from the checkpoint")
        self.until(lambda: self._driver("table"), "Spark makes a table of the topic")
        self.until(lambda: self._driver("states"), "Spark audits the transactions")
        self.show("counting what Spark wrote")
        rows = self._driver("table")["table"]
        reminders = [order for topic, order, _ in rows if topic == REMINDERS]
        table = [(order, cents) for topic, order, cents in rows if topic == TOPIC]
        return Spark(table, reminders, bodies(self.nameserver, COPIES), killed_at, self._driver("states"))

    def _driver(self, name: str) -> dict[str, Any]:
        """Return the line of the driver that has this field; empty: none yet."""
        return next((line for line in self.processes.lines("Spark driver") if name in line), {})

    def _found(self, admin: Admin) -> Found:
        orders = self.orders.execute("SELECT id, cents, state, tx FROM orders")
        return Found(
            orders={order: (cents, state, tx) for order, cents, state, tx in orders},
            sent=ids(self.orders, "reminders"),
            delivered={order: (cents, times) for order, cents, times in self.deliveries.execute("SELECT * FROM deliveries")},
            delivered_large=ids(self.deliveries, "large"),
            delivered_reminders=dict(self.deliveries.execute("SELECT id, number FROM reminders")),
            log=bodies(self.nameserver, TOPIC),
            reminders=bodies(self.nameserver, REMINDERS),
            halves=all_halves(admin),
            pending=pending(admin),
        )

    def until(self, condition: Callable[[], Any], step: str) -> None:
        """Wait until a condition holds, and show the step meanwhile."""
        self.show(step)
        while not condition():
            self.processes.check("broker", "consumer", self.service, "Spark driver")
            if time.monotonic() > self.latest:
                raise DemoFailed(f"it took over {self.latest - self.begin:.0f} s; the last step was: {step}, {self.counts()}")
            self.show(step)
            time.sleep(LOOK_S)

    def show(self, step: str) -> None:
        """Write a line for each new step; on a terminal, the line of the step counts."""
        if self.given.json:
            return
        paid, refused, delivered = self.counts()
        text = f"{step}: {paid:,} paid, {refused:,} refused, {delivered:,} delivered"
        if sys.stdout.isatty():
            print(f"\r\x1b[K{text}" if step == self._step else f"\n{text}", end="", flush=True)
        elif step != self._step:
            print(text, flush=True)
        self._step = step

    def counts(self) -> Counts:
        """Return how far it is."""
        return counts(self.orders, self.deliveries)

    def _decided(self) -> int:
        return self.counts().paid + self.counts().refused

    def _all_delivered(self) -> bool:
        """Return whether all reminders were sent, and they and the large orders were delivered."""
        paid = self.orders.execute("SELECT id, cents FROM orders WHERE state = ?", (PAID,)).fetchall()
        sent, wanted = ids(self.orders, "reminders"), {order for order, _ in paid if wants_reminder(int(order[2:]))}
        large = {order for order, cents in paid if cents > LARGE_CENTS}
        return wanted <= sent <= ids(self.deliveries, "reminders") and large <= ids(self.deliveries, "large")


def pending(admin: Admin) -> int:
    """Return how many half messages are undecided."""
    return sum(stats.pending_count for stats in admin.transaction_stats())


def all_halves(admin: Admin) -> list[Half]:
    """Return every half message, decided or not, as the broker's table has it."""
    halves: list[Half] = []
    with suppress(BrokerError):
        while True:
            half = admin.transaction(len(halves))
            halves.append(Half(half.msg_id, half.state, half.last_answer))
    return halves


def bodies(nameserver: str, topic: str) -> list[bytes]:
    """Return the bodies of all messages of a topic."""
    with Admin(nameserver=nameserver) as admin:
        ends = {queue: ends.max_offset for queue, ends in admin.topic_stats(topic).items()}
    found: list[bytes] = []
    with PullConsumer(group="S_count", nameserver=nameserver, auto_commit=False) as consumer:
        consumer.assign(list(ends))
        for queue in ends:
            consumer.seek(queue, 0)
        while len(found) < sum(ends.values()):
            found += [message.body for message in consumer.poll(500)]
    return found


def make_topic(nameserver: str, topic: str) -> None:
    """Create a topic, and wait until the name server knows it."""
    deadline = time.monotonic() + 10
    with Admin(nameserver=nameserver) as admin:
        while True:
            try:
                admin.create_topic(topic, queue_count=4)
                admin.topic_route(topic)
                return
            except HalfmoonError as exc:
                if time.monotonic() > deadline:
                    raise DemoFailed(f"the topic could not be created: {exc}") from exc
                time.sleep(LOOK_S)


# ---------------------------------------------------------------- the closing table


def facts_of(demo: Demo, found: Found) -> dict[str, Any]:
    """Return the outcome for programs."""
    late_ms = sorted(found.delivered_reminders.values())
    faults = spark_faults(found)
    table = rows(found)
    return {
        "outcomes": [row._asdict() for row in table],
        "agrees": all(row.agrees for row in table) and not faults,
        "by_check": sum(half.last_answer in ("COMMIT", "ROLLBACK") for half in found.halves),
        "again_visible": again_visible(found),
        "again_delivered": sum(times - 1 for _, times in found.delivered.values()),
        "reminders_late_ms": late_ms[len(late_ms) // 2] if late_ms else 0,
        "kills": demo.given.kills,
        "ready_ms": demo.ready_ms,
        "seconds": round(time.monotonic() - demo.begin, 1),
        "no_spark": demo.no_spark,
        "spark": None if found.spark is None else {"killed_at": found.spark.killed_at, "faults": faults, **found.spark.audit},
    }


def show(found: Found, facts: dict[str, Any], picture: Path) -> None:
    """Write the closing table for people, and below it what the table does not show."""
    print()
    places = ["log", "delivered", *(["in Spark", "copied"] if found.spark else [])]
    lines = [
        [row.outcome, f"{row.database:,}", row.half_messages, *(f"{count:,}" for count in row.places),
         *[""] * (len(places) - len(row.places)), "yes" if row.agrees else "NO"]
        for row in rows(found)
    ]  # fmt: skip
    show_table(["outcome", "database", "half messages", *places, "agrees"], lines)
    if found.spark:
        show_spark(found, facts["spark"], picture)
    print(f"Checks decided {facts['by_check']:,}: their second phase was lost, or a process was killed.")
    if facts["again_visible"] or facts["again_delivered"]:
        print(
            f"{facts['again_visible']:,} messages are visible twice, {facts['again_delivered']:,} came again and were recognised."
        )
    if found.sent:
        print(f"No reminder came before its time; half of them at most {facts['reminders_late_ms']} ms after it.")
    first, *others = (f"{ms} ms" for ms in facts["ready_ms"])
    print(f"The broker was ready in {first}" + (f", and after kill -9 in {', '.join(others)}." if others else "."))
    if facts["no_spark"]:
        print(f"Spark's part was left out: {facts['no_spark']}")
    print(f"{'Everything agrees' if facts['agrees'] else 'IT DOES NOT AGREE'}, after {facts['seconds']} s.")


def show_spark(found: Found, audit: dict[str, Any], picture: Path) -> None:
    """Write the audit of the log beside the broker's own figures, and how the copying went."""
    assert found.spark is not None
    at_broker = states_at_broker(found.halves)
    lines = []
    for state in sorted({*audit["states"], *at_broker}):
        in_log, latency = audit["states"].get(state, 0), audit["latencies"].get(state, {})
        times = [f"{round(latency[name]):,}" if latency else "" for name in ("p50", "p95", "max")]
        agrees = "yes" if in_log == at_broker.get(state, 0) else "NO"
        lines.append([state.lower().replace("_", " "), f"{in_log:,}", f"{at_broker.get(state, 0):,}", *times, agrees])
    show_table(["transactions", "in the log", "at the broker", "p50 ms", "p95 ms", "longest ms", "agrees"], lines)
    print(f"As a picture: {picture}")
    print(f"{audit['duplicates']:,} transactions are visible twice, {audit['orphans']:,} records of the log belong to none.")
    faults = "; ".join(audit["faults"]) or "none is missing, none is there twice"
    print(f"Spark's driver was killed when {audit['killed_at']:,} of {len(found.spark.copies):,} copies were there; {faults}.")


def show_table(names: list[str], lines: Sequence[list[str]]) -> None:
    """Write a table; numbers stand to the right."""
    widths = [max(map(len, column)) for column in zip(names, *lines)]
    for line in (names, ["─" * width for width in widths], *lines):
        cells = [
            text.rjust(width) if text[:1].isdigit() and text.replace(",", "").isdigit() else text.ljust(width)
            for text, width in zip(line, widths)
        ]
        print("  ".join(cells).rstrip())
    print()


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--per-second", type=int, default=200)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--spark", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.umask(0o077)  # files that only their owner may read, here and in the processes that are started
    directory = given.keep or Path(tempfile.mkdtemp(prefix="halfmoon-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        parser.error(f"--keep {directory}: must be empty")
    if given.plot is None:
        given.plot = given.keep / "transactions.png" if given.keep else Path(f"{directory}.png")
    try:
        with Processes(directory) as processes:
            demo = Demo(processes, given)
            with closing(demo.orders), closing(demo.deliveries):
                found = demo.run()
                facts = facts_of(demo, found)
    except (DemoFailed, HalfmoonError) as exc:
        print(f"halfmoon demo: {exc}", file=sys.stderr)
        return 1
    except Stopped as exc:
        print("\nhalfmoon demo: stopped", file=sys.stderr)
        return exc.code
    finally:
        if given.keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    if given.json:
        print(json.dumps(facts))
    else:
        show(found, facts, given.plot)
    return 0 if facts["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
