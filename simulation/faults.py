"""Faults of a simulated cluster, chosen from a seed: crashes, disks, networks and clocks. Injects, never judges.

Each history uses only some kinds of faults, drawn from its seed: a history with one kind of trouble finds what many kinds at once
would hide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from halfmoon.errors import StoreError
from halfmoon.store.layout import CHECKPOINT, CONSUME_QUEUE, INDEX, JOURNAL
from halfmoon.testing.cluster import BrokerNode, Cluster
from halfmoon.testing.disk import Stopped
from halfmoon.testing.host import CoreHost
from simulation.damage.log import Hit, damage_log, judge_loss, judge_start, listening, log_of, whole_records
from simulation.ledger import FoundFault, Ledger, Place

SLOW_US = (20_000, 2_000_000)
"""Duration of a sync on a disk that is slow, microseconds: up to 2 s."""

HOUR_MS = 3_600_000

REGISTER_MS = 30_000
"""How often brokers register; so long after the last fault every name server knows them all."""

REMEDY = re.compile(r"truncate -s (\d+) (\S+)$")
"""Command that a broker asks an operator for before it starts."""

STUCK_US = (3_000_000, 8_000_000)
"""Duration of a sync on a disk that hardly goes on, microseconds: longer than a send waits."""


class Faults:
    """Faults that strike a cluster one after another. ``kinds`` are the names of the methods below that may be chosen.

    ``workload`` has the users, for faults of a workload's own.
    """

    DRAWN: tuple[str, ...] = (
        "kill", "power", "torn", "stop", "slow_disk", "stuck_disk", "failed_sync", "cut", "lose", "half_open", "clock",
        "nameserver",
    )  # fmt: skip
    """Kinds that a seed may draw; one more would change what every seed draws, so the others of ``KINDS`` are asked for by name."""

    KINDS: tuple[str, ...] = (*DRAWN, "full_disk", "descriptors", "vanish", "flip", "damage", "unwritable", "clock_set")

    def __init__(
        self, cluster: Cluster, ledger: Ledger, random: Random, *, kinds: Sequence[str] | None = None, workload: Any = None
    ) -> None:  # fmt: skip
        self.cluster, self._ledger, self._random, self._workload = cluster, ledger, random, workload
        chosen = random.sample(self.DRAWN, random.randint(1, 5)) if kinds is None else list(kinds)
        self.kinds = sorted(chosen)
        self._hits: dict[str, list[Hit]] = {}
        """Records of the logs of brokers that were damaged since they ran."""
        cluster.on_stopped = self._stopped
        self.count = 0

    def begin(self, count: int, gap_ms: tuple[int, int]) -> None:
        self._remaining, self._gap_ms = count, gap_ms
        self._next()

    def _next(self) -> None:
        if self._remaining > 0 and self.kinds:
            self._remaining -= 1
            self.cluster.timeline.after(self._random.randint(*self._gap_ms), self._strike)

    def _strike(self) -> None:
        self.count += 1
        self._do(self._random.choice(self.kinds))
        self._next()

    def _do(self, kind: str) -> None:
        action: Callable[[], None] = getattr(self, kind)
        action()

    # ---------------------------------------------------------------- processes

    def kill(self) -> None:
        """Kill a broker's process and start it again."""
        self._crash(power=False)

    def power(self) -> None:
        """Take a broker's power and give it back."""
        self._crash(power=True)

    def _crash(self, *, power: bool, meanwhile: Callable[[BrokerNode], None] = lambda broker: None) -> None:
        broker = self._random.choice(self.cluster.brokers)
        self._note(broker, "power" if power else "kill")
        self.cluster.crash(broker, power=power)
        meanwhile(broker)
        self._later((10, 2500), partial(self._restart, broker))

    def torn(self) -> None:
        """Kill a broker's process in the middle of one of its next writes, or of those of its next start."""
        broker = self._random.choice(self.cluster.brokers)
        broker.disk.stop_after_writes = self._random.choice((0, 1, 3, 10, 40))

    def _stopped(self, broker: BrokerNode) -> None:
        self._note(broker, "kill")
        self._note(broker, "torn")
        self._later((10, 1000), partial(self._restart, broker))

    def stop(self) -> None:
        """Stop a broker cleanly and start it again."""
        broker = self._random.choice(self.cluster.brokers)
        if broker.running and not broker.leaving:
            self._note(broker, "stop")
            self.cluster.begin_stop(broker, partial(self._left, broker))

    def _left(self, broker: BrokerNode) -> None:
        self._note(broker, "left")
        self._later((10, 1000), partial(self._restart, broker))

    def _restart(self, broker: BrokerNode, tries: int = 20) -> None:
        if broker.running:
            return
        try:
            if broker.name in self._hits:
                self._start_damaged(broker)
            else:
                self.cluster.restart(broker)
            self._note(broker, "start")
        except Stopped as exc:
            self.cluster.timeline.note(broker.name, f"is stopped at its start, in a write to {exc}")
            self.cluster.crash(broker)
            self._stopped(broker)
        except OSError as exc:  # a sync that fails or a full disk at the start: somebody tries again
            if not tries:
                raise
            self.cluster.timeline.note(broker.name, f"does not start: {exc}")
            self.cluster.crash(broker)
            self._later((100, 400), partial(self._restart, broker, tries - 1))

    def nameserver(self) -> None:
        """Kill a name server and start it again, empty."""
        node = self._random.choice(self.cluster.nameservers)
        if node.core is not None:
            node.kill(power=self._random.random() < 0.3)
            self._later((10, 3000), partial(self._start_nameserver, node))

    def _start_nameserver(self, node: CoreHost) -> None:
        if node.core is None:
            self.cluster.start_nameserver(node)

    # ---------------------------------------------------------------- disks and clocks

    def slow_disk(self) -> None:
        """Let a broker's disk be slow for a while."""
        self._slow(SLOW_US)

    def stuck_disk(self) -> None:
        """Let a broker's disk hardly go on for a while."""
        self._slow(STUCK_US)

    def _slow(self, work_us: tuple[int, int]) -> None:
        host = self._random.choice(self.cluster.brokers).host
        before, host.work_us = host.work_us, work_us
        self.cluster.timeline.note(host.name, f"has a slow disk: a sync takes {work_us[0] // 1000} to {work_us[1] // 1000} ms")

        def heal() -> None:
            host.work_us = min(before, host.work_us)

        self._later((200, 5000), heal)

    def failed_sync(self) -> None:
        """Let a broker's next sync fail; somebody starts the broker again some time later."""
        broker = self._random.choice(self.cluster.brokers)
        self._note(broker, "sync")
        self.cluster.fail_sync(broker)
        self._later((300, 4000), partial(self._replace, broker))

    def _replace(self, broker: BrokerNode) -> None:
        self._note(broker, "kill")
        self.cluster.crash(broker)
        self._later((10, 500), partial(self._restart, broker))

    def full_disk(self) -> None:
        """Let a broker's disk have no room for new files and pages for a while; a broker that then refuses writes is replaced."""
        broker = self._random.choice(self.cluster.brokers)
        self.cluster.timeline.note(broker.name, "has a full disk")
        broker.disk.full = True

        def empty() -> None:
            broker.disk.full = False
            if broker.running and broker.core.store.refusal is not None:
                self._replace(broker)

        self._later((100, 2500), empty)

    def descriptors(self) -> None:
        """Let a broker's process have few descriptors left, or none, for a while; nobody starts it again."""
        broker = self._random.choice(self.cluster.brokers)
        broker.disk.descriptors = self._random.choice((0, 0, 1, 2, 5))
        self.cluster.timeline.note(broker.name, f"may open {broker.disk.descriptors} files more")

        def closed() -> None:
            broker.disk.descriptors = None

        self._later((100, 2500), closed)

    def vanish(self) -> None:
        """Kill a broker's process, remove files that are made of the log, and start it again."""
        self._crash(power=False, meanwhile=self._vanish)

    def _vanish(self, broker: BrokerNode) -> None:
        paths = [path for path in broker.disk.paths() if path.startswith((f"{CONSUME_QUEUE}/", f"{INDEX}/"))]
        if paths:
            path = self._random.choice(paths)
            parts = path.split("/")
            start = self._random.choice([path, *("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))])
            count = broker.disk.vanish(start)
            self._note(broker, "vanish")
            self.cluster.timeline.note(broker.name, f"finds {start} gone, {count} files")

    def flip(self) -> None:
        """Kill a broker's process, turn a bit over in each file that says where its log and queues end, and start it again."""
        self._crash(power=False, meanwhile=self._flip)

    def _flip(self, broker: BrokerNode) -> None:
        for path in broker.disk.paths():
            if path.startswith((CHECKPOINT, JOURNAL)):
                self.cluster.timeline.note(broker.name, f"finds a bit of {path} turned over, in byte {broker.disk.flip(path)}")

    def damage(self) -> None:
        """Kill a broker's process, damage records of its log, and start it again: what is whole it keeps, what it cuts it says."""
        self._crash(power=False, meanwhile=self._damage)

    def _damage(self, broker: BrokerNode) -> None:
        what, hits = damage_log(broker.disk, self._random)
        if hits:
            self.cluster.timeline.note(broker.name, f"finds its log damaged, {what}: {len(hits)} records from {hits[0]} on")
            self._hits.setdefault(broker.name, []).extend(hits)
            self._spoil(broker, hits)

    def _spoil(self, broker: BrokerNode, hits: list[Hit]) -> None:
        self._ledger.hits.setdefault(broker.name, []).extend(hits)
        for hit in hits:
            self._ledger.spoilt.add((Place(broker.name, hit.topic, hit.queue_id), hit.queue_offset))
            self._ledger.spoilt_bytes.add((broker.name, hit.physical_offset))

    def _start_damaged(self, broker: BrokerNode) -> None:
        before, records = log_of(broker.disk), whole_records(broker.disk)
        with listening() as lines:
            try:
                self.cluster.restart(broker)
            except StoreError as exc:
                if (remedy := REMEDY.search(str(exc))) is None:
                    raise
                self.cluster.timeline.note(broker.name, f"does not start: {exc}")
                broker.disk.overwrite(remedy[2], bytes(broker.disk.open(remedy[2]).data).ljust(int(remedy[1]), b"\0"))
                return self._start_damaged(broker)
        recovered, hits = broker.core.store.recovered, self._hits.pop(broker.name)
        if recovered.lost:
            problems, cut = judge_loss(records, broker.disk, recovered.start, recovered.found_end)
            self._spoil(broker, cut)
        else:
            problems = judge_start(before, records, hits, broker.disk, lines, range(recovered.start, recovered.found_end))
        if problems:
            self._ledger.unexpected += [f"{broker.name} started on a damaged log: {problem}" for problem in problems]

    def unwritable(self) -> None:
        """Let no table of a broker be saved, the permissions of their directory are gone; then kill its process, and mend that."""
        broker = self._random.choice(self.cluster.brokers)
        broker.disk.unwritable = "config/"
        self.cluster.timeline.note(broker.name, "can write nothing in config/")
        self._note(broker, "unwritable")

        def mended() -> None:
            self._note(broker, "kill")
            self.cluster.crash(broker)
            broker.disk.unwritable = None
            self._note(broker, "writable")
            self._later((10, 500), partial(self._restart, broker))

        self._later((4_000, 6_000), mended)  # longer than a crash may take progress back

    def clock(self) -> None:
        """Let a broker's clock step forward."""
        self._random.choice(self.cluster.brokers).host.step_clock(self._random.choice((1, 50, 2_000, 60_000, HOUR_MS)))

    def clock_set(self) -> None:
        """Set the clock of a broker or name server an hour forward, or one that is ahead an hour back."""
        host = self._random.choice([*self.cluster.nameservers, *(broker.host for broker in self.cluster.brokers)])
        back = host.clock_ahead_ms >= HOUR_MS and self._random.random() < 0.5
        host.step_clock(-HOUR_MS if back else HOUR_MS)

    # ---------------------------------------------------------------- network

    def cut(self) -> None:
        """Cut hosts off from each other for a while."""
        hosts = [node.host for node in self.cluster.nameservers] + [broker.host.host for broker in self.cluster.brokers]
        one = self._random.choice(hosts)
        others = [host for host in hosts + self.cluster.client_hosts if host != one]
        for other in self._random.sample(others, self._random.randint(1, len(others))):
            self.cluster.timeline.note("network", f"{one} and {other} are cut off")
            self.cluster.network.cut(one, other)
        self._later((50, 6000), self._heal)

    def _heal(self) -> None:
        self.cluster.timeline.note("network", "is whole")
        self.cluster.network.heal()

    def lose(self) -> None:
        """Break some of a broker's connections."""
        ends = self.cluster.network.connections(self._random.choice(self.cluster.brokers).host.host)
        for end in self._random.sample(ends, min(len(ends), self._random.randint(1, 4))):
            self.cluster.timeline.note("network", f"{end.local} and {end.remote} lose their connection")
            self.cluster.network.lose(end)

    def half_open(self) -> None:
        """Break one connection for one side only."""
        ends = self.cluster.network.connections(self._random.choice(self.cluster.brokers).host.host)
        if ends:
            end = self._random.choice(ends)
            end = end if self._random.random() < 0.5 else end.other
            self.cluster.timeline.note("network", f"{end.local} is told that {end.remote} is gone")
            self.cluster.network.half_open(end)

    # ---------------------------------------------------------------- ending

    def end(self) -> None:
        """Undo everything that does not end by itself, and start whoever does not run."""
        self._remaining = 0
        self._heal()
        for node in self.cluster.nameservers:
            self._start_nameserver(node)
        for broker in self.cluster.brokers:
            broker.host.work_us = self.cluster.work_us
            broker.disk.stop_after_writes = None
            broker.disk.full = False
            broker.disk.descriptors = broker.disk.unwritable = None
            self._restart(broker)

    def _later(self, between_ms: tuple[int, int], action: Callable[[], None]) -> None:
        self.cluster.timeline.after(self._random.randint(*between_ms), action)

    def _note(self, broker: BrokerNode, kind: str) -> None:
        self._ledger.faults.append(FoundFault(self.cluster.timeline.now, broker.name, kind))
