"""Consumers of Halfmoon's client that join, leave and die during a history, and the base of workloads with them.

Each workload says what they do with messages.
"""

from __future__ import annotations

from random import Random
from typing import Generic, TypeVar

from halfmoon.testing.clients import SimPullConsumer, SimPushConsumer
from halfmoon.testing.cluster import BrokerNode, Cluster
from simulation.history import History, Workload


class SimulatedMember:
    """A consumer that comes and goes. A workload's subclass sets ``client`` and implements `go`."""

    client: SimPushConsumer | SimPullConsumer

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name, self.gone = cluster, name, False

    def go(self, *, crash: bool) -> None:
        """Leave: cleanly, or as a killed process."""
        raise NotImplementedError

    def end(self) -> None:
        """End its process; the operating system closes the connections."""
        self.client.kill()
        self.cluster.network.kill(self.client.host)

    def lose(self, chance: Random) -> None:
        """Break one of its connections."""
        if ends := self.cluster.network.connections(self.client.host):
            end = chance.choice(ends)
            self.cluster.timeline.note(self.name, f"loses its connection to {end.remote}")
            self.cluster.network.lose(end)


M = TypeVar("M", bound=SimulatedMember)


class MemberWorkload(Workload, Generic[M]):
    """A workload whose members join (``join``), leave (``leave``), are killed (``crash``) and lose connections (``lose``).

    ``broker`` kills a broker, which forgets its locks, and starts it again. Any other kind names a method of the member, which gets
    the `Random`. ``join`` stops at ``MEMBERS_MAX`` members, ``leave`` and ``crash`` at ``STAY``; if the last leaves, another joins.
    """

    FAULTS = None
    STAY, MEMBERS_MAX = 0, 4
    GAP_MS = 100, 3_000

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.members: list[M] = []

    def draw_kinds(self, drawn: set[str]) -> None:
        """Use the kinds of events that were drawn, unless the history was given some."""
        if self.history.kinds is None:
            self.history.kinds = sorted(drawn)

    def member(self, number: int) -> M:
        """Make a member; it joins at once."""
        raise NotImplementedError

    def join(self) -> None:
        """Let one more member join."""
        self.members.append(self.member(len(self.members) + 1))

    def happen(self, steps: int) -> None:
        """Let ``steps`` things happen, with pauses between them drawn from ``GAP_MS``."""
        for _ in range(steps):
            self.cluster.run(ms=self.chance.randint(*self.GAP_MS))
            if self.history.kinds:
                self.do(self.chance.choice(self.history.kinds))

    def do(self, kind: str) -> None:
        """Let one event of this kind happen, if the number of members allows it."""
        here = [member for member in self.members if not member.gone]
        if kind == "broker":
            self.kill_broker(self.chance.choice(self.cluster.brokers))
        elif kind == "join":
            if len(here) < self.MEMBERS_MAX:
                self.join()
        elif kind in ("leave", "crash"):
            if len(here) > self.STAY:
                self.chance.choice(here).go(crash=kind == "crash")
                if len(here) == 1:
                    self.join()
        elif here:
            getattr(self.chance.choice(here), kind)(self.chance)

    def kill_broker(self, broker: BrokerNode) -> None:
        """Kill a broker and start it again."""
        self.history.bounce(broker, (1, 2_000))
