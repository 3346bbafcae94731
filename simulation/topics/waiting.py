"""One simulated history: an operator deletes a topic and creates it again while delayed and half messages for it wait.

verdict = simulate_waiting(seed=7)
assert verdict.problems == []

The broker creates no topics by itself here. It is checked that each waiting message reaches the topic that it was accepted for, or,
where that topic was deleted, is kept as an expired message, exactly once; that a message sent again under its id is stored in the
topic of today; and that a deleted topic comes back only when the operator creates it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from halfmoon.model import REPEAT, UNIQ_KEY
from halfmoon.testing.cluster import Cluster, topic_request
from halfmoon.testing.requests import send_header
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import GetMaxOffset
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.record import decode_records
from simulation.history import BROKER
from simulation.ledger import Ledger
from simulation.verdict import Verdict, judging

TOPIC, EXPIRED, GROUP, QUEUES = "orders", "TRANS_CHECK_MAX_TIME_TOPIC", "payers", 2
KINDS = ("kill",)
STEPS = 4
LEVELS, LEVELS_MS = "1s 3s", (1000, 3000)
COMMIT, GONE = 8, 17


@dataclass
class WaitingVerdict(Verdict):
    """Result of a history of waiting messages."""

    workload = "waiting"
    counts = "{acknowledged} acknowledged, {expired} expired"
    acknowledged: int = 0
    expired: int = 0


@dataclass
class _Sent:
    """An acknowledged message: the life of the topic that it was sent to, and until when it waits (halves: until the commit)."""

    life: int
    due_ms: int
    half: SendMessageReply | None = None


@dataclass
class _Life:
    """The topic from its creation to its deletion: what was seen in it, and when it ended."""

    seen: Counter[bytes] = field(default_factory=Counter)
    ended_ms: int | None = None


def simulate_waiting(
    seed: int, *, steps: int = STEPS, flush: str | None = None, kinds: tuple[str, ...] | None = None, **options: Any
) -> WaitingVerdict:
    """Run the history of a seed and judge it. ``steps`` is how often the topic is made; ``kinds`` (of `KINDS`) are drawn."""
    chance = Random(f"waiting {seed}")
    drawn = [kind for kind in KINDS if chance.random() < 0.7]
    verdict = WaitingVerdict(seed, flush or chance.choice(("sync", "async")), list(kinds) if kinds is not None else drawn)
    ledger = Ledger(verdict.flush)
    broker = {**BROKER, "auto_create_topics": False, "delay_levels": LEVELS}
    with judging(verdict, ledger, broker=broker, **options) as cluster:
        history = _History(cluster, chance, "kill" in verdict.kinds)
        history.run(steps)
        verdict.problems = [*history.judged(), *ledger.unexpected]
        verdict.acknowledged, verdict.expired = len(history.sent), sum(history.expired().values())
    return verdict


class _History:
    def __init__(self, cluster: Cluster, chance: Random, kills: bool) -> None:
        self.cluster, self.chance, self._kills, self._node = cluster, chance, kills, cluster.brokers[0]
        self.sent: dict[bytes, _Sent] = {}
        self.lives: list[_Life] = []
        self._open: list[bytes] = []
        """Halves that are not decided."""
        self._problems: list[str] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._make()
            for _ in range(self.chance.randint(4, 9)):
                self._send()
                self._commit_some()
                self._pause(300)
            self._delete()
            self._commit_some()
            self._pause(2000)
        self._make()
        self._send()
        while self._open:
            self._commit(self._open.pop())
        self.cluster.run(ms=6000)
        self._look()

    # ------------------------------------------------------------ what is done

    def _make(self) -> None:
        assert self.cluster.request(self._node.address, topic_request(TOPIC, QUEUES)).code == 0
        self.lives.append(_Life())

    def _delete(self) -> None:
        self._look()
        assert self.cluster.request(self._node.address, DeleteTopicInBroker(topic=TOPIC)).code == 0
        self.lives[-1].ended_ms = self.cluster.timeline.now
        self._pause(1500)
        if self._node.core.topics.get(TOPIC) is not None:
            self._problems.append("back: the deleted topic is there again")

    def _pause(self, most_ms: int) -> None:
        if self._kills and self.chance.random() < 0.15:
            self.cluster.crash(self._node)
            self.cluster.restart(self._node)
            self.cluster.request(self._node.address, GetMaxOffset(topic=EXPIRED, queue_id=0))  # connects again
        self.cluster.run(ms=self.chance.randint(0, most_ms))

    def _send(self) -> None:
        """Send a message that waits, and one that is sent again under the id that it has in every life of the topic."""
        now, life, number = self.cluster.timeline.now, len(self.lives), len(self.sent)
        kind = self.chance.choice(("level", "timer", "half"))
        body, level, due_ms = (
            b"%d/%d/%s" % (life, number, kind.encode()),
            self.chance.randrange(2),
            now + self.chance.randint(100, 5000),
        )
        asked = {
            "level": {"DELAY": str(level + 1)}, "timer": {"TIMER_DELIVER_MS": str(due_ms)},
            "half": {"TRAN_MSG": "true", "PGROUP": GROUP},
        }[kind]  # fmt: skip
        reply = self._told(body, {UNIQ_KEY: f"w-{number}", **asked})
        self.sent[body] = _Sent(life, now + LEVELS_MS[level] if kind == "level" else due_ms)
        if kind == "half":
            self.sent[body].half = reply
            self._open.append(body)
        again = b"%d/again" % life
        self._told(again, {UNIQ_KEY: "again", REPEAT: "2"})
        self.sent[again] = _Sent(life, now)

    def _told(self, body: bytes, fields: dict[str, str]) -> SendMessageReply:
        header = send_header(SendMessageV2, TOPIC, self.chance.randrange(QUEUES), self.cluster.timeline.now, fields)
        reply = self._call(header, body)
        assert reply.code == 0, reply.remark
        told: SendMessageReply = reply.header(SendMessageReply)
        return told

    def _call(self, header: Any, body: bytes = b"") -> Command:
        task = self.cluster.call(header, body)
        self.cluster.timeline.run_until(lambda: task.done, 30_000)
        reply: Command = task.result()
        return reply

    def _commit_some(self) -> None:
        for body in [body for body in self._open if self.chance.random() < 0.2]:
            self._open.remove(body)
            self._commit(body)

    def _commit(self, body: bytes) -> None:
        half, is_there = self.sent[body].half, self.lives[self.sent[body].life - 1].ended_ms is None
        assert half is not None
        reply = self._call(EndTransaction(
            producer_group=GROUP, tran_state_table_offset=half.queue_offset, commit_or_rollback=COMMIT,
            commit_log_offset=parse_offset_msg_id(half.msg_id).physical_offset, msg_id="",
        ))  # fmt: skip
        self.sent[body].due_ms = self.cluster.timeline.now
        if reply.code != (0 if is_there else GONE):
            self._problems.append(f"answer: the commit of {body.decode()} was answered {reply.code}: {reply.remark}")

    # ------------------------------------------------------------ what is so

    def _bodies(self, topic: str) -> Counter[bytes]:
        store = self._node.core.store
        pieces = [piece for queue_id in range(QUEUES) for piece in store.read(topic, queue_id, 0, 10_000).pieces]
        return Counter(bytes(message.body) for piece in pieces for message in decode_records(bytes(piece)))

    def expired(self) -> Counter[bytes]:
        """Return how often each message expired."""
        return self._bodies(EXPIRED)

    def _look(self) -> None:
        self.lives[-1].seen = self._bodies(TOPIC)

    def judged(self) -> list[str]:
        """Return all that is wrong."""
        problems, expired = self._problems, self.expired()
        for life, found in enumerate(self.lives, 1):
            strays = [body for body in found.seen if self.sent[body].life != life]
            problems += [f"stray: {body.decode()} came to life {life} of the topic" for body in strays]
        for body, sent in self.sent.items():
            ended_ms, times = self.lives[sent.life - 1].ended_ms, self.lives[sent.life - 1].seen[body] + expired[body]
            if times > 1:
                problems.append(f"twice: {body.decode()} is there {times} times")
            elif not times and (ended_ms is None or sent.due_ms > ended_ms):
                problems.append(f"lost: {body.decode()} is neither in its topic nor expired")
        return problems
