"""Workload of an operator who deletes a topic and creates it again while delayed and half messages for it wait.

The broker creates no topics by itself here. It is checked that each waiting message reaches the topic that it was accepted for, or,
where that topic was deleted, is kept as an expired message, exactly once; that a message sent again under its id is stored in the
topic of today; and that a deleted topic comes back only when the operator creates it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from halfmoon.model import REPEAT, UNIQ_KEY
from halfmoon.testing.cluster import topic_request
from halfmoon.testing.requests import send_header
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import GetMaxOffset
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.record import decode_records
from simulation.history import BROKER, History, Workload

TOPIC, EXPIRED, GROUP, QUEUES = "orders", "TRANS_CHECK_MAX_TIME_TOPIC", "payers", 2
LEVELS, LEVELS_MS = "1s 3s", (1000, 3000)
COMMIT, GONE = 8, 17


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


class Waiting(Workload):
    """Senders of messages that wait, and an operator who makes their topic ``steps`` times; ``kill`` kills the broker."""

    NAME, STEPS = "waiting", 4
    FAULTS, KINDS = None, ("kill",)

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.sent: dict[bytes, _Sent] = {}
        self.lives: list[_Life] = []
        self._open: list[bytes] = []
        """Halves that are not decided."""

    def draw(self) -> dict[str, Any]:
        drawn = [kind for kind in self.KINDS if self.chance.random() < 0.7]
        self.history.kinds = drawn if self.history.kinds is None else self.history.kinds
        self.history.draw_flush()
        return {"broker": {**BROKER, "auto_create_topics": False, "delay_levels": LEVELS}}

    def happen(self, steps: int) -> None:
        """Make and delete the topic again and again while messages are sent and decided."""
        self.node = self.cluster.brokers[0]
        for _ in range(steps):
            self._make()
            for _ in range(self.chance.randint(4, 9)):
                self._send()
                self._commit_some()
                self._pause(300)
            self._delete()
            self._commit_some()
            self._pause(2000)

    def end(self) -> None:
        """Make the topic once more, decide what is undecided, and wait."""
        self._make()
        self._send()
        while self._open:
            self._commit(self._open.pop())
        self.cluster.run(ms=6000)
        self._look()

    def count(self) -> dict[str, int | str]:
        return {"acknowledged": len(self.sent), "expired": sum(self.expired().values())}

    # ------------------------------------------------------------ what is done

    def _make(self) -> None:
        assert self.cluster.request(self.node.address, topic_request(TOPIC, QUEUES)).code == 0
        self.lives.append(_Life())

    def _delete(self) -> None:
        self._look()
        assert self.cluster.request(self.node.address, DeleteTopicInBroker(topic=TOPIC)).code == 0
        self.lives[-1].ended_ms = self.cluster.timeline.now
        self._pause(1500)
        if self.node.core.topics.get(TOPIC) is not None:
            self.found["back"].append("the deleted topic is there again")

    def _pause(self, most_ms: int) -> None:
        if self.history.kinds and self.chance.random() < 0.15:
            self.cluster.crash(self.node)
            self.cluster.restart(self.node)
            self.cluster.request(self.node.address, GetMaxOffset(topic=EXPIRED, queue_id=0))  # connects again
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
            self.found["answer"].append(f"the commit of {body.decode()} was answered {reply.code}: {reply.remark}")

    # ------------------------------------------------------------ what is so

    def _bodies(self, topic: str) -> Counter[bytes]:
        store = self.node.core.store
        pieces = [piece for queue_id in range(QUEUES) for piece in store.read(topic, queue_id, 0, 10_000).pieces]
        return Counter(bytes(message.body) for piece in pieces for message in decode_records(bytes(piece)))

    def expired(self) -> Counter[bytes]:
        """Return how often each message expired."""
        return self._bodies(EXPIRED)

    def _look(self) -> None:
        self.lives[-1].seen = self._bodies(TOPIC)

    def problems(self) -> dict[str, list[str]]:
        expired = self.expired()
        for life, found in enumerate(self.lives, 1):
            strays = [body for body in found.seen if self.sent[body].life != life]
            self.found["stray"] += [f"{body.decode()} came to life {life} of the topic" for body in strays]
        for body, sent in self.sent.items():
            ended_ms, times = self.lives[sent.life - 1].ended_ms, self.lives[sent.life - 1].seen[body] + expired[body]
            if times > 1:
                self.found["twice"].append(f"{body.decode()} is there {times} times")
            elif not times and (ended_ms is None or sent.due_ms > ended_ms):
                self.found["lost"].append(f"{body.decode()} is neither in its topic nor expired")
        return self.found
