"""`PairHistory`: the history of a pair from a seed, and its verdict."""

from __future__ import annotations

from functools import partial

import msgspec

from halfmoon.broker.pairs.record import LeaseRecord
from halfmoon.store.settings import ASYNC_FLUSH, SYNC_FLUSH, StoreSettings
from halfmoon.testing.cluster import SMALL, topic_request
from halfmoon.testing.timeline import Timeline
from simulation.verdict import PROBLEMS_MAX, Verdict, errors_logged
from tests.simulation.pairs.faults import KINDS, PairFaults
from tests.simulation.pairs.leases import SimLeases
from tests.simulation.pairs.member import SimMember
from tests.simulation.pairs.processes import PairNetwork
from tests.simulation.pairs.users import QUEUES, TOPIC, PairLedger, Place, User

LEASE_MS = 2000
BROKER = {"lease_ms": LEASE_MS, "slave_timeout_ms": 1000, "save_offsets_ms": 1000, "slave_silence_ms": 4000, "cluster": "pair"}
FAULTS_MS, HEALED_MS = 10_000, 60_000


class PairHistory:
    """A pair, its users, and what happens to them."""

    def __init__(self, seed: int, *, kinds: tuple[str, ...] = KINDS, count: int = 5, flush: str = "") -> None:
        self.timeline = timeline = Timeline(seed)
        chance = timeline.split("history")
        self.flush = flush or chance.choice(("sync", "async"))
        self.kinds = [chance.choice(kinds) for _ in range(count)]
        self.network = PairNetwork(timeline)
        self.leases = SimLeases(timeline, max(LEASE_MS // 4, 200))
        self.ledger = PairLedger()
        store = StoreSettings(**{**SMALL, "flush_disk_type": SYNC_FLUSH if self.flush == "sync" else ASYNC_FLUSH})  # type: ignore[arg-type]
        self.members = [SimMember(timeline, self.network, self.leases, number, store, BROKER) for number in range(2)]
        addresses = [member.address for member in self.members]
        self.users = [User(timeline, self.network, self.ledger, list(addresses), number + 1) for number in range(2 + QUEUES)]
        self.faults = PairFaults(self)
        self.is_healed = self._has_lost_power = False
        self._holders: dict[int, str] = {}
        self.leases.on_change, self.ledger.on_acked = self._lease_changed, self._check_named
        for member in self.members:
            member.answers = lambda member=member: self._answered(member)  # type: ignore[misc]

    # ------------------------------------------------------------ what faults need

    def other(self, member: SimMember) -> SimMember:
        """Return the other member."""
        return self.members[1 - self.members.index(member)]

    def start_all(self) -> None:
        """Start what does not run."""
        for member in self.members:
            if not member.is_running:
                self._note_loss(member)
                member.start()

    def _note_loss(self, member: SimMember) -> None:
        """Excuse a loss where a member goes on alone with a log that a power loss has taken the end of."""
        if self._has_lost_power and (record := self.record()) is not None and len(record.in_sync) < 2:
            self.ledger.excused = True

    def may_lose_power(self, member: SimMember) -> bool:
        """Return whether a power loss takes nothing that was promised. With asynchronous flush one at most, of a complete pair."""
        if self.flush == "sync":
            return True
        record = self.record()
        if self._has_lost_power or record is None or len(record.in_sync) < 2 or not self.other(member).is_running:
            return False
        self._has_lost_power = True
        return True

    def record(self) -> LeaseRecord | None:
        """Return the record of the lease; None: there is none, or it is damaged."""
        try:
            return None if self.leases.text is None else msgspec.json.decode(self.leases.text, type=LeaseRecord)
        except (msgspec.MsgspecError, ValueError):
            return None

    # ------------------------------------------------------------ what is checked at once

    def _lease_changed(self) -> None:
        record = self.record()
        if record is not None and record.broker.startswith("pair/broker-a"):
            if self._holders.setdefault(record.epoch, record.holder) != record.holder and record.address:
                self.ledger.problems.append(f"epoch {record.epoch} has two masters")
            self._check_named()

    def _check_named(self) -> None:
        """Check that every member that may take the lease has what was acknowledged."""
        record = self.record()
        if record is None or (self.ledger.has_lost_power and self.flush == "async"):
            return
        for member in self.members:
            store = member.store
            if store is None or member.lease is None or member.lease.member not in record.in_sync:
                continue
            end = store.durable_offset if self.flush == "sync" else store.end_offset
            if end < self.ledger.end:
                self.ledger.problems.append(
                    f"{self.timeline.elapsed_ms}: {member.name} may take the lease, and lacks what was acknowledged behind {end}"
                )

    def _answered(self, member: SimMember) -> None:
        """Check that who answers has the lease, by true time."""
        record, lease = self.record(), member.lease
        if record is None or lease is None or record.broker != "pair/broker-a":
            return
        if record.epoch > lease.epoch or record.holder != lease.member:
            self.ledger.problems.append(
                f"{self.timeline.elapsed_ms}: {member.name} answers in epoch {lease.epoch}, and {record.epoch} has begun"
            )

    # ------------------------------------------------------------ its course

    def run(self) -> Verdict:
        """Let all happen, and judge it."""
        verdict = Verdict("pairs", self.timeline.seed, self.flush, kinds=self.kinds)
        unexpected: list[str] = []
        with errors_logged(lambda text: self.timeline.note("log", text), lambda text: None):
            try:
                self._happen()
            except Exception as exc:
                unexpected.append(f"raised: {type(exc).__name__}: {exc}")
        verdict.problems = [*unexpected, *self.ledger.problems][:PROBLEMS_MAX]
        ledger = self.ledger
        verdict.counts = {
            "acknowledged": len(ledger.acked), "owed": len(ledger.owed), "read": len(ledger.seen), "topics": len(ledger.topics),
            "epochs": max(self._holders, default=0), "excused": int(ledger.excused),
        }  # fmt: skip
        verdict.virtual_ms, verdict.events, verdict.lines = (
            self.timeline.elapsed_ms, self.timeline.steps, list(self.timeline.history)
        )  # fmt: skip
        return verdict

    def _happen(self) -> None:
        timeline = self.timeline
        self.members[0].start()
        timeline.after(timeline.split("begin").choice((0, 10, 1000)), self.start_all)
        reader = self.users[0]
        made = reader.driver.start(reader.insist(topic_request(TOPIC, QUEUES), 100))
        if not timeline.run_until(lambda: made.done, 20_000):
            self.ledger.problems.append("no topic is made")
            return
        tasks = [user.driver.start(user.send()) for user in self.users[:2]]
        tasks += [user.driver.start(user.consume(queue_id)) for queue_id, user in enumerate(self.users[2:])]
        self.faults.begin(self.kinds, FAULTS_MS)
        timeline.run(FAULTS_MS + 1000)
        self.heal()
        timeline.run(1000)
        self.ledger.is_closing = True
        timeline.run_until(lambda: all(task.done for task in tasks), 20_000)
        self.ledger.problems += [f"{task.name} raised {task.error!r}" for task in tasks if task.error is not None]
        if not all(task.done for task in tasks):
            self.ledger.problems.append("users hang")
        if not self._await_complete():
            return
        timeline.run(3500)  # delays are due
        if self._await_complete():
            self._judge(reader, "")
            self._fail_over(reader)

    def _fail_over(self, reader: User) -> None:
        """Kill the master: the other one has all that it had."""
        master = next(member for member in self.members if member.broker is not None)
        master.kill()
        other = self.other(master)
        if not self.timeline.run_until(lambda: other.broker is not None, 20_000):
            self.ledger.problems.append(f"nobody takes over: {other.problem}")
            return
        self._judge(reader, "after the failover: ")

    def heal(self) -> None:
        """End all that is wrong."""
        self.is_healed = True
        for member in self.members:
            member.disk.stop_after_writes = None
        self.faults.heal()
        self.start_all()

    def _await_complete(self) -> bool:
        def is_complete() -> bool:
            brokers = [member.broker for member in self.members if member.broker is not None]
            if len(brokers) != 1 or brokers[0].copies.pair is None or not brokers[0].copies.pair.is_complete:
                return False
            standby = next((member._standby for member in self.members if member._standby is not None), None)
            return standby is not None and standby.store.end_offset == brokers[0].store.end_offset

        for _ in range(5):  # torn writes of a start: it is started again
            if self.timeline.run_until(is_complete, HEALED_MS // 5):
                return True
            self.start_all()
        why = {member.name: member.problem for member in self.members}
        self.ledger.problems.append(f"the pair does not become complete: {why}")
        return False

    # ------------------------------------------------------------ what is checked at the end

    def _judge(self, reader: User, when: str) -> None:
        ledger = self.ledger
        held, problems = self._read_all(reader), list[str]()
        if held is None:
            ledger.problems.append(f"{when}queues cannot be read")
            return
        if ledger.excused:
            return
        for place, body in held.items():
            ledger.saw(place, body)
        problems += [f"{body!r} at {place} is lost" for body, place in ledger.acked.items() if held.get(place) != body]
        problems += [f"{body!r} at {place} was read, and is lost" for place, body in ledger.seen.items() if place not in held]
        bodies = set(held.values())
        problems += [f"{body!r} is owed" for body in ledger.owed if body not in bodies]
        broker = next(member.broker for member in self.members if member.broker is not None)
        problems += [f"topic {topic} is lost" for topic in ledger.topics if broker.topics.get(topic) is None]
        if not when:
            problems += self._logs_differ()
        ledger.problems += [when + problem for problem in problems]

    def _read_all(self, reader: User) -> dict[Place, bytes] | None:
        for _ in range(10):
            task = reader.driver.start(reader.read_all())
            self.timeline.run_until(partial(getattr, task, "done"), 3000)
            if task.done and task.error is None:
                return task.result()
        return None

    def _logs_differ(self) -> list[str]:
        master = next(member.broker.store for member in self.members if member.broker is not None)
        copy = next(member._standby.store for member in self.members if member._standby is not None)
        if master.end_offset != copy.end_offset:
            return [f"the logs end at {master.end_offset} and {copy.end_offset}"]
        at = max(master.min_offset, copy.min_offset)
        while at < master.end_offset:
            size = min(master.end_offset, master.log.segments.base(at) + master.log.file_bytes) - at
            if bytes(master.log.segments.view(at, size)) != bytes(copy.log.segments.view(at, size)):
                return [f"the logs differ between {at} and {at + size}"]
            at += size
        return []
