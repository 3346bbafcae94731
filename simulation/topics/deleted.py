"""Workload of consumers that run while their topic is deleted, made anew and filled again.

The members are our own client: ``push``, ``orderly``, ``poll`` and ``broadcast``, or ``foreign`` and ``foreign poll``, which know
nothing of births, as those of other makers. ``cut`` keeps them from the broker meanwhile; ``kill`` kills the broker between the
deletion and the new topic, which only our own client survives without a loss. With ``restore`` no topic is deleted: the broker is
stopped for a backup, goes on, and is replaced by one on the backup, which has less than the members were given. With ``clean`` an
operator has expired and unused files removed again and again, which takes nothing that is in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from halfmoon.client.core.consume.offsets import UNKNOWN, LocalOffsets, RemoteOffsets
from halfmoon.client.core.consume.push_consumer import PushConsumerCore
from halfmoon.effects import Call, Op, sleep
from halfmoon.errors import NetworkError
from halfmoon.model import ConsumeFrom, MessageModel, MessageQueue, StoredMessage
from halfmoon.testing.clients import SimPullConsumer, SimPushConsumer
from halfmoon.testing.cluster import Cluster, topic_request
from halfmoon.wire.headers.admin import CleanExpiredConsumequeue, CleanUnusedTopic, DeleteExpiredCommitlog
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from simulation.history import BROKER, CLIENT, History, Workload

TOPIC, GROUP, QUEUES = "orders", "C_deleted", 2
MEMBERS = ("push", "orderly", "poll", "broadcast", "foreign", "foreign poll")
FOREIGN = ("foreign", "foreign poll")
CLEANING = (CleanExpiredConsumequeue, CleanUnusedTopic, DeleteExpiredCommitlog)
OURS: dict[str, Any] = {**CLIENT, "persist_offsets_ms": 500}
SETTLE_MS = 90_000
LOOK_MS = 20


class ForeignOffsets(RemoteOffsets):
    """Progress as clients keep it that do not know what the birth of a topic is."""

    def birth(self, queue: MessageQueue) -> int | None:  # type: ignore[override]
        """Say nothing."""
        return None

    def learn_birth(self, queue: MessageQueue, birth_ms: int | None) -> None:
        """Hear nothing."""

    def fetch(self, queue: MessageQueue) -> Op[int]:
        """Ask as they ask."""
        reader = self._routes.reader(queue.broker_name)
        if reader is None:
            raise NetworkError(f"The broker[{queue.broker_name}] not exist")
        request = QueryConsumerOffset(consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id)
        reply = yield Call(reader[0], request, b"", self._timeout_ms)
        if reply.code != 0:
            return UNKNOWN
        offset: int = reply.header(OffsetReply).offset
        self.offsets[queue] = offset
        return offset


class MemoryFile:
    """A member's offsets file."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def load(self) -> bytes | None:
        """Return its content."""
        return self.data

    def save(self, data: bytes) -> None:
        """Replace its content."""
        self.data = data


class _Member:
    """A consumer in a group of its own, and what its application was given, by body."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.kind, self.group, self.given = kind, f"{GROUP}_{kind.replace(' ', '_')}", set[bytes]()
        values: dict[str, Any] = {"group": self.group, "consume_from": ConsumeFrom.FIRST_OFFSET, "name": kind, **OURS}
        if kind in FOREIGN:
            values["make_offsets"] = ForeignOffsets
        if kind == "broadcast":
            values |= {"make_offsets": lambda *_: LocalOffsets(MemoryFile()), "model": MessageModel.BROADCASTING}
        self.client: SimPushConsumer | SimPullConsumer
        if kind.endswith("poll"):
            self.client = SimPullConsumer(cluster, TOPIC, auto_commit_ms=1, **values)
            self.client.driver.start(self._poll(self.client), kind)
        else:
            self.client = SimPushConsumer(cluster, TOPIC, self._take, orderly=kind == "orderly", **values)

    def pause(self, paused: bool) -> None:
        """Pull nothing, or go on."""
        core = self.client.core
        if isinstance(core, PushConsumerCore):
            core.paused = paused
        elif paused:
            core.pause([core.user_queue(queue) for queue in core.held])
        else:
            core.resume([core.user_queue(queue) for queue in core.paused])

    def _take(self, messages: list[StoredMessage]) -> None:
        self.given.update(message.body for message in messages)

    def _poll(self, client: SimPullConsumer) -> Op[None]:
        while not client.core.running:
            yield from sleep(10)
        while True:
            self._take((yield from client.core.poll(200)))


class Deleted(Workload):
    """Members of ``MEMBERS``, each in a group of its own, and an operator who deletes their topic ``steps`` times."""

    NAME, STEPS = "deleted", 2
    FAULTS, KINDS = None, ("cut", "busy", "kill", "clean", "restore")
    SETTINGS = ("members",)
    members: Sequence[str] = ()
    """Kinds of members; none: two are drawn."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._operator = Random(f"operator {history.seed}")  # of its own, so that histories of known seeds stay what they were
        self.queues: dict[int, dict[int, bytes]] = {}  # acknowledged since the topic was made last: by queue and offset
        self.there: list[_Member] = []
        self.acknowledged = self._deletions = 0

    def draw(self) -> dict[str, Any]:
        self.members = self.members or self.chance.sample(MEMBERS, 2)
        allowed = self.KINDS[: 2 if any(member in FOREIGN for member in self.members) else 3]
        drawn = [kind for kind in allowed if self.chance.random() < 0.5]
        if self._operator.random() < 0.5:
            drawn.append("clean")
        self.kinds = self.history.kinds = drawn if self.history.kinds is None else self.history.kinds
        self.history.draw_flush()
        return {"broker": BROKER}

    def begin(self) -> None:
        self.node = self.cluster.brokers[0]
        self._make()
        self.there = [_Member(self.cluster, kind) for kind in self.members]
        self.cluster.timeline.after(LOOK_MS, self._look)
        self._count = self.chance.randint(3, 8)
        self._fill(self._count)
        self._settle()
        self.cluster.run(ms=self.chance.randint(1, 2_000))

    def happen(self, steps: int) -> None:
        """Delete the topic and make it anew, or go back to a backup; then fill it, and let members read all of it."""
        for _ in range(steps):
            if any(self.found.values()):
                return
            if "restore" in self.kinds:
                self._restore()
            else:
                self._delete()
                self._make()
            self._count += self.chance.randint(1, 6)  # more than before: no offset of the old topic lies behind the end
            self._fill(self._count)
            self._count_messages()
            self.cluster.run(ms=self.chance.randint(1, 3_000))
            self.cluster.network.heal()
            for member in self.there:
                member.pause(False)
            self._settle()
            self.cluster.run(ms=2_000)

    def count(self) -> dict[str, int | str]:
        given = sum(len(member.given) for member in self.there)
        return {"as members": " and ".join(self.members), "acknowledged": self.acknowledged, "given": given}

    def _delete(self) -> None:
        cluster, node = self.cluster, self.node
        if "busy" in self.kinds:
            for member in self.there:
                member.pause(True)
            self._fill(1)  # pulls that wait for a message are answered, and the next ones are not made
            cluster.run(ms=100)
        if "cut" in self.kinds:
            for member in self.there:
                cluster.network.cut(member.client.host, node.host.host)
        self.queues.clear()
        self._deletions += 1
        assert cluster.request(node.address, DeleteTopicInBroker(topic=TOPIC)).code == 0
        self._clean()
        if "kill" in self.kinds:
            cluster.crash(node, power=self.chance.random() < 0.5)
            cluster.restart(node)
        cluster.run(ms=self.chance.choice((0, 0, 5, 100, 2_000)))

    def _restore(self) -> None:
        """Have a broker go on from a backup behind which its members are."""
        cluster, node = self.cluster, self.node
        cluster.stop(node)
        backup, held = node.disk.backup(), {queue_id: dict(bodies) for queue_id, bodies in self.queues.items()}
        cluster.restart(node)
        self._make()  # it is there; this only connects again
        self._deletions += 1
        self._fill(self.chance.randint(20, 30))
        self._settle()
        cluster.run(ms=self.chance.randint(1, 3_000))
        self._deletions += 1
        self.queues.clear()
        self.queues.update(held)
        cluster.crash(node)
        node.disk = backup
        cluster.restart(node)
        self._make()

    def _make(self) -> None:
        assert self.cluster.request(self.node.address, topic_request(TOPIC, QUEUES)).code == 0

    def _clean(self) -> None:
        """Have removed what may be; what that leaves to be done may be under way when the broker is killed."""
        if "clean" in self.kinds:
            for header in self._operator.sample(CLEANING, self._operator.randint(1, len(CLEANING))):
                assert self.cluster.request(self.node.address, header()).code == 0

    def _fill(self, count: int) -> None:
        for number in range(count):
            for queue_id in range(QUEUES):
                body = b"%d/%d/%d" % (self._deletions, queue_id, number)
                sent = self.cluster.send(TOPIC, body, queue_id=queue_id)
                self.cluster.timeline.run_until(lambda sent=sent: sent.done, 10_000)  # type: ignore[misc]
                self.queues.setdefault(queue_id, {})[sent.result().queue_offset] = body
                self.acknowledged += 1
        self._clean()

    def _missing(self) -> list[tuple[str, bytes]]:
        bodies = [body for queue in self.queues.values() for body in queue.values()]
        return [(member.kind, body) for member in self.there for body in bodies if body not in member.given]

    def _settle(self) -> None:
        self.cluster.timeline.run_until(lambda: not self._missing(), SETTLE_MS)
        for kind, body in self._missing()[:10]:
            self.found["lost"].append(f"{body.decode()} was not given to {kind}")

    def _count_messages(self) -> None:
        """Check that a topic made anew, or one of a backup, holds the messages sent to it and none of the old one."""
        store = self.node.core.store
        for queue_id, bodies in self.queues.items():
            held = store.queue_max(TOPIC, queue_id) - store.queue_min(TOPIC, queue_id)
            if held != len(bodies):
                self.found["back"].append(f"queue {queue_id} of the topic made anew holds {held} messages of {len(bodies)}")

    def _look(self) -> None:
        """Check that the broker's progress of a group is not ahead of the messages that the group was given."""
        core = self.node.core
        for member in self.there if core is not None else ():
            for queue_id, bodies in self.queues.items():
                stored = core.offsets.get(member.group, TOPIC, queue_id) or 0
                ahead = [body for offset, body in bodies.items() if offset < stored and body not in member.given]
                if ahead and len(self.found["ahead"]) < 20:
                    self.found["ahead"].append(f"{ahead[0].decode()} was not given to {member.kind} when {stored} was stored")
        self.cluster.timeline.after(LOOK_MS, self._look)
