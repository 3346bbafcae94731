"""Workload of weeks: jobs write batches, are idle for a week and more, and run again under their ids.

Meanwhile other ids need the room, log files go, brokers are killed, and clocks are set a week forward and back. What a job wrote is
known for as long as its messages are in the log, or the run is refused: no message is there twice. A disk that is full gets room:
no log file stays for an id that is idle, known or forgotten.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from halfmoon.broker.settings import BrokerSettings
from halfmoon.testing.cluster import SMALL
from halfmoon.wire.bodies.batches import ONE_RUN
from simulation.batches.checkers import copies
from simulation.batches.drivers import BatchDriver
from simulation.batches.queries import LEVELS, QUEUES, TOPIC, Query
from simulation.history import History, Workload

WEEK_MS = BrokerSettings().batch_retention_ms
SHORT_WEEK_MS = 60_000
"""A week of brokers that live through it."""
RUN_MS = 60_000
"""Longest time of a job."""
DRAWN = ("kill", "power", "crowded", "pass", "step", "set_right")
MAKES_WAY_MS = 150_000
"""Time within which a full disk has room again."""
FILLER, FILLER_BYTES = "filler", 1500
STORE = {"clean_interval_ms": 400}
COUNTED = ("runs again", "batches decided already", "runs refused", "messages written anew", "full disks that had room again")


class Weeks(Workload):
    """Jobs over ``steps`` weeks, in which a broker stops, log files are removed, time passes, a clock jumps or is corrected.

    Two kinds are only for histories that ask for them: jobs with ids of their own, which expire (``once``), and a ``full`` disk.
    ``ids_max`` is how many ids a broker knows.
    """

    NAME, STEPS = "weeks", 8
    FAULTS, KINDS = None, (*DRAWN, "once", "full")
    SETTINGS = ("ids_max",)
    ids_max = 3

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.jobs: list[Query] = []
        self.counts: Counter[str] = Counter()

    def draw(self) -> dict[str, Any]:
        history, chance = self.history, self.chance
        history.draw_flush()
        history.kinds = history.kinds or [kind for kind in DRAWN if chance.random() < 0.6] or list(DRAWN)
        week_ms = SHORT_WEEK_MS if "pass" in history.kinds else WEEK_MS
        settings = {"batch_ids_max": self.ids_max, "delay_levels": LEVELS, "batch_retention_ms": week_ms}
        if "full" in history.kinds:  # until then an attempt that was left alone keeps its files
            settings["batch_timeout_ms"] = MAKES_WAY_MS // 3
        return {"brokers": chance.choice((1, 1, 2)), "store": STORE, "broker": settings}

    def happen(self, steps: int) -> None:
        """Let weeks pass; in each, and at the end, jobs run again."""
        self.history.create_topics(TOPIC, FILLER, queues=QUEUES)
        kinds = self.history.kinds or []
        for _ in range(steps):
            for _ in range(0 if "once" in kinds else self.chance.randint(0, 2)):
                self._new_job()
            self._fill()
            for kind in kinds:
                if self.chance.random() < 0.7:
                    getattr(self, f"_{kind}")()
            self.cluster.run(ms=2000)
            for job in self.chance.sample(self.jobs, min(len(self.jobs), 2)):
                self._again(job)
        for job in self.jobs:
            self._again(job)

    def count(self) -> dict[str, int | str]:
        return {what: self.counts[what] for what in COUNTED}

    # ---------------------------------------------------------------- jobs

    def _new_job(self) -> None:
        chance, number = self.chance, len(self.jobs)
        job = Query(
            f"job-{number}", self.history.plan.brokers, chance.randint(1, 2), chance.choice((2, 7)), chance.randint(1, 3),
            chance.random() < 0.5, seed=self.cluster.timeline.seed,
        )  # fmt: skip
        self.jobs.append(job)
        self._finish(job)

    def _again(self, job: Query) -> None:
        """Run a job again from its first batch, as somebody does who does not know that it is done; look for what it doubled."""
        before, already = self._there(job), job.already
        job.done = -1
        self.counts["runs again"] += 1
        self._finish(job)
        after = self._there(job)
        self.counts["batches decided already"] += job.already - already
        self.counts["messages written anew"] += sum(name not in before for name in after)
        for name, count in after.items():
            if count > 1:
                self.found["twice"].append(f"{name} is there {count} times, {before[name]} before {job.id} ran again")
        self.found["told"] += [problem for problem in job.problems if "knows nothing of it" not in problem]  # a refusal
        self.found["lost"] += [f"{name} is there no more since {job.id} ran again" for name in before if name not in after]

    def _finish(self, job: Query) -> None:
        """Run a job until it is done or fails; as who looks after it tries again, a few times."""
        for _ in range(3):
            if self._ran(job):
                self.cluster.run(ms=500)
                return
            self.cluster.run(ms=1000)
        self.counts["runs refused"] += 1

    def _ran(self, job: Query) -> bool:
        driver = BatchDriver(self.cluster, job, tidy=True)
        if not self.cluster.timeline.run_until(lambda: driver.ended, RUN_MS):
            self.found["hangs"].append(f"{driver.name}")
            driver.kill()
            return False
        if driver.task.error is not None:
            self.cluster.timeline.note(driver.name, f"fails: {driver.task.error}")
        return driver.task.error is None

    def _there(self, job: Query) -> Counter[str]:
        there = copies(self.history.contents(self.history.places([TOPIC], QUEUES)))
        return Counter({name: len(those) for name, those in there.items() if name.startswith(f"{job.id}/")})

    def _fill(self) -> None:
        """Send other messages, so that log files end and may go."""
        count = self.chance.choice((10, 60, 100))
        sent = [
            self.cluster.send(FILLER, bytes(FILLER_BYTES), broker=number)
            for number in range(len(self.cluster.brokers))
            for _ in range(count)
        ]
        self.cluster.timeline.run_until(lambda: all(task.done for task in sent), 30_000)

    # ---------------------------------------------------------------- a week

    def _kill(self) -> None:
        self._end(power=False)

    def _power(self) -> None:
        self._end(power=True)

    def _end(self, *, power: bool) -> None:
        self.history.bounce(self.chance.choice(self.cluster.brokers), (10, 500), power=power)
        self.cluster.run(ms=31_000 if power else 2000)  # until name servers know it again

    def _crowded(self) -> None:
        broker = self.chance.choice(self.cluster.brokers)
        broker.disk.used_bytes = broker.disk.total_bytes * 80 // 100
        self.cluster.timeline.note(broker.name, "has a disk of which 80% is used")
        self.cluster.run(ms=3000)
        broker.disk.used_bytes = 0

    def _once(self) -> None:
        self._finish(Query(f"{ONE_RUN}{self.cluster.timeline.elapsed_ms}", self.history.plan.brokers, 2, 2, 1, wandering=False))

    def _full(self) -> None:
        """Fill a disk until it takes nothing; the log must let go of files that nobody needs."""
        broker = self.chance.choice(self.cluster.brokers)
        broker.disk.used_bytes = broker.disk.total_bytes * 95 // 100
        self.cluster.timeline.note(broker.name, "has a disk of which 95% is used")
        end = broker.core.store.end_offset - 2 * SMALL["commit_log_file_bytes"]
        if self.cluster.timeline.run_until(lambda: broker.core.store.min_offset >= end, MAKES_WAY_MS):
            self.counts["full disks that had room again"] += 1
        else:
            pins = {pin.what: pin.needed_from() for pin in broker.core.store.maintenance.pins}
            self.found["stays"].append(f"the log of {broker.name} from {broker.core.store.min_offset} on, pinned from {pins}")
        broker.disk.used_bytes = 0
        self.cluster.run(ms=2000)

    def _pass(self) -> None:
        self.cluster.run(ms=self.chance.randint(SHORT_WEEK_MS, 2 * SHORT_WEEK_MS))

    def _step(self) -> None:
        """Let all machines sleep for more than a week, or set the clock of one."""
        for broker in self.chance.choice((self.cluster.brokers, self.cluster.brokers[:1])):
            broker.host.step_clock(WEEK_MS + 86_400_000)
        self.cluster.run(ms=2000)

    def _set_right(self) -> None:
        """Set clocks that are ahead right; brokers start on them, or go on with them."""
        for broker in self.cluster.brokers:
            if broker.host.clock_ahead_ms and self.chance.random() < 0.5:
                self.cluster.stop(broker)
                broker.host.step_clock(-broker.host.clock_ahead_ms)
                self.cluster.restart(broker)
        self.cluster.run(ms=2000)
