"""Clients of one kind that use a pair while its master changes: their program, what they are given to do, and what they report.

Each kind has producers, a concurrent and an orderly consumer of what these send, a consumer of delayed messages and, where it can,
a transactional producer with a consumer of what that decides. All of a kind run in one process, which is never started again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from halfmoon import Admin, AsyncAdmin
from tests.interop.clients.peers import go, node
from tests.interop.java_peer import JavaPeer
from tests.interop.peer import Peer, PeerError
from tests.waiting import until

LOAD, LATER, DECIDED = "Load", "Later", "Decided"
QUEUES = 4
ROUTES_MS = 3_000
"""Interval at which clients look for routes, where they can be told."""
WITHIN_S = 180
"""Longest time that clients may take: those whose interval is fixed look for routes every 30 s."""
PAUSE_MS = 15
"""Pause before each message of a load."""
DELAY_LEVEL, DELAY_MS = 2, 20_000
IN_DOUBT = {"COMMIT_MESSAGE": "commit-{n}", "ROLLBACK_MESSAGE": "rollback-{n}"}
"""Bodies of transactions in doubt, by what their check is answered."""
IN_DOUBT_COUNT = 5
CYCLE = [
    {"execute": execute, "check": check}
    for execute, check in (
        ("COMMIT_MESSAGE", "COMMIT_MESSAGE"),
        ("ROLLBACK_MESSAGE", "ROLLBACK_MESSAGE"),
        ("UNKNOW", "COMMIT_MESSAGE"),
        ("UNKNOW", "ROLLBACK_MESSAGE"),
    )
]
"""Transactions under load: what the local transaction returns, and what a check is answered."""
OUTLASTS_MS = 15_000
"""Time of our sends, in which another member takes over (docs/pairs.md)."""
_ROOT = Path(__file__).resolve().parents[2]


def python(home: Path) -> Peer:
    """Start our own clients."""
    path = f"{_ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return Peer([sys.executable, str(_ROOT / "tests" / "interop" / "python" / "peer.py")], home, {**os.environ, "PYTHONPATH": path})


@dataclass(frozen=True)
class Kind:
    """A kind of client: what starts its program, and what is said to it."""

    start: Callable[[Path], Peer]
    producers: Mapping[str, Mapping[str, Any]]
    """Producer group → how it is made."""
    orderly: str = "push"
    """Verb of an orderly consumer."""
    has_locks: bool = True
    """Whether orderly consumers lock queues at the broker, so that several can share a group."""
    has_transactions: bool = True
    transaction_load: bool = False


_ONE = {"P": {"timeout_ms": 1000}}
KINDS = {
    "java-4.9.7": Kind(lambda home: JavaPeer("4.9.7", home), _ONE, "orderly"),
    "java-5.3.3": Kind(lambda home: JavaPeer("5.3.3", home), _ONE, "orderly"),
    "go": Kind(go, _ONE),
    "node": Kind(node, _ONE, has_locks=False, has_transactions=False),
    "python": Kind(
        python, {"P": {"timeout_ms": OUTLASTS_MS}, "A": {"timeout_ms": OUTLASTS_MS, "asynchronous": True}}, transaction_load=True
    ),
}


@dataclass
class Outcome:
    """What became of the loads between two moments. ``failed`` and ``longest_ms`` are by producer group."""

    acknowledged: set[str] = field(default_factory=set)
    decided: dict[str, str] = field(default_factory=dict)
    """Body of a transaction → what its check is answered, and its local transaction returned if it knew."""
    failed: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    longest_ms: dict[str, int] = field(default_factory=dict)
    """Longest time between two acknowledged sends."""


class Clients:
    """All clients of a kind, at the name server of a pair."""

    def __init__(self, kind: Kind, home: Path, nameserver: str) -> None:
        self.kind, self.nameserver = kind, nameserver
        self.peer = kind.start(home)
        self._members = {"orderly": ["orderly-1", "orderly-2"] if kind.has_locks else ["orderly-1"]}
        self._loads = [*kind.producers, *(["T"] if kind.transaction_load else [])]

    def call(self, verb: str, **order: Any) -> Any:
        """Give an order."""
        return self.peer.call(verb, wait_s=WITHIN_S, nameserver=self.nameserver, routes_ms=ROUTES_MS, **order)

    def start(self) -> None:
        """Start all clients."""
        with Admin(nameserver=self.nameserver) as admin:
            for topic in (LOAD, LATER, DECIDED):
                admin.create_topic(topic, queue_count=QUEUES)
                until(lambda: admin.topic_route(topic).queue_datas, "the route of a topic")  # noqa: B023
        for group, how in self.kind.producers.items():
            self.call("producer", group=group, **how)
        for name in self._members["orderly"]:
            self.call(self.kind.orderly, name=name, group="orderly", topic=LOAD, orderly=True)
        for group, topic in (("push", LOAD), ("later", LATER)):
            self.call("push", name=group, group=group, topic=topic)
        if self.kind.has_transactions:
            self.call("tx.producer", name="T", group="T", timeout_ms=OUTLASTS_MS)
            self.call("push", name="decided", group="decided", topic=DECIDED)

    def load(self, phase: str) -> None:
        """Have all producers send, until `finish`."""
        for group in self._loads:
            text = f"{phase}-{group}-{{n}}"
            order = {"name": "T", "topic": DECIDED, "cycle": CYCLE} if group == "T" else {"topic": LOAD}
            self.call("load", group=group, body=text, keys=text, pause_ms=PAUSE_MS, **order)

    def goes_on(self, count: int = 100) -> None:
        """Wait until each producer got more messages through, and the consumers too."""
        wanted = {group: self.call("load.count", group=group) + count for group in self._loads}
        for group, each in wanted.items():
            until(lambda: self.call("load.count", group=group) >= each, f"the load of {group} to go on", within_s=WITHIN_S)  # noqa: B023
        for group in ("push", "orderly"):
            more = len(self.received(group)) + count
            until(lambda: len(self.received(group)) >= more, f"the group {group} to go on", within_s=WITHIN_S)  # noqa: B023

    def finish(self) -> Outcome:
        """End the loads."""
        outcome = Outcome()
        for group in self._loads:
            told = self.call("load.stop", group=group)
            if group == "T":
                outcome.decided = {body: sent["properties"]["check"] for body, sent in told["acknowledged"].items()}
            else:
                outcome.acknowledged |= set(told["acknowledged"])
            outcome.failed[group], outcome.longest_ms[group] = told["failed"], int(told["longest_ms"])
            outcome.failures += told.get("failures", [])
        return outcome

    def delay(self) -> set[str]:
        """Send messages with a delay, and return their bodies."""
        self.call("send", group="P", topic=LATER, body="later-{n}", level=DELAY_LEVEL, count=10)
        return {f"later-{number}" for number in range(10)}

    def leave_in_doubt(self) -> dict[str, str]:
        """Send transactions whose outcome only a check brings; return it by body."""
        outcomes: dict[str, str] = {}
        for check, text in IN_DOUBT.items():
            properties = {"execute": "UNKNOW", "check": check}
            self.call("tx.send", name="T", group="T", topic=DECIDED, body=text, properties=properties, count=IN_DOUBT_COUNT)
            outcomes |= {text.replace("{n}", str(number)): check for number in range(IN_DOUBT_COUNT)}
        return outcomes

    def checked(self) -> set[str]:
        """Return the bodies of the transactions that a broker asked about."""
        return {each["body"] for each in self.call("tx.checks", name="T")}

    def commits(self, body: str) -> bool:
        """Send a transaction that commits at once, and return whether that was acknowledged."""
        properties = {"execute": "COMMIT_MESSAGE", "check": "COMMIT_MESSAGE"}
        try:
            self.call("tx.send", name="T", group="T", topic=DECIDED, body=body, properties=properties, count=1)
        except PeerError:
            return False
        return True

    def received(self, group: str) -> list[dict[str, Any]]:
        """Return all that the members of a group got, in the order of time."""
        time.sleep(0.2)  # for this is long, and asked for again and again
        got = []
        for name in self._members.get(group, [group]):
            got += [{"member": name, **each} for each in self.call("push.wait", name=name, count=0, timeout_ms=0)]
        return sorted(got, key=lambda each: (each["at_ms"], each["queue_offset"]))

    def wait_received(self, group: str, wanted: Collection[str]) -> list[dict[str, Any]]:
        """Wait until a group got these bodies, and return all that it got."""

        def everything() -> list[dict[str, Any]] | None:
            found = self.received(group)
            return found if set(wanted) <= {each["body"] for each in found} else None

        found: list[dict[str, Any]] = until(everything, f"the group {group} to get everything", within_s=WITHIN_S)
        return found

    def stop(self, name: str) -> None:
        """Close a concurrent consumer, which leaves its progress at the broker."""
        self.call("push.stop", name=name)


def committed(nameserver: str, group: str, address: str) -> dict[int, int]:
    """Return a group's offset in each queue of the load, as one member of the pair has it."""

    async def asked() -> dict[int, int]:
        async with AsyncAdmin(nameserver=nameserver) as admin:
            stats = await admin.run(admin.core.group_stats(group, LOAD, at=[address]))
        return {queue.queue_id: each.consumer_offset for queue, each in stats.offset_table.items()}

    return asyncio.run(asked())


def out_of_order(view: Iterable[Mapping[str, Any]], *, steps_back_max: int) -> list[str]:
    """Return where a consumer's view of a queue leaves an offset out, or goes back more often than messages may come again."""
    queues: dict[int, list[int]] = {}
    for each in view:
        queues.setdefault(each["queue_id"], [-1]).append(each["queue_offset"])
    faults = []
    for queue_id, offsets in sorted(queues.items()):
        back = sum(later <= sooner for sooner, later in pairwise(offsets))
        faults += [f"queue {queue_id}: {later} after {sooner}" for sooner, later in pairwise(offsets) if later > sooner + 1]
        faults += [f"queue {queue_id} goes back {back} times"] if back > steps_back_max else []
    return faults


def owners(view: Iterable[Mapping[str, Any]]) -> dict[int, list[str]]:
    """Return the members that consumed each queue, one after the other."""
    queues: dict[int, list[str]] = {}
    for each in view:
        known = queues.setdefault(each["queue_id"], [])
        if not known or known[-1] != each["member"]:
            known.append(each["member"])
    return queues


def longest_pause_ms(view: Iterable[Mapping[str, Any]], phase: str) -> int:
    """Return the longest time between two messages of a phase that a consumer got."""
    moments = sorted(each["at_ms"] for each in view if each["body"].startswith(phase))
    return max((later - sooner for sooner, later in pairwise(moments)), default=0)


def repeated(view: Collection[Mapping[str, Any]]) -> int:
    """Return how many messages came again: the same offset of the same queue."""
    return len(view) - len({(each["queue_id"], each["queue_offset"]) for each in view})
