"""Members of a history: who joins, leaves, is killed, and who stays."""

from __future__ import annotations

from random import Random

from halfmoon.testing.clients import SimPushConsumer
from halfmoon.testing.cluster import Cluster
from simulation.history import History
from simulation.members import MemberWorkload, SimulatedMember


class Visitor(SimulatedMember):
    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.greeted = 0
        self.client = SimPushConsumer(cluster, "orders", lambda messages: None, name=name)

    def go(self, *, crash: bool) -> None:
        self.gone = True
        self.end()

    def greet(self, chance: Random) -> None:
        self.greeted += 1


class Visits(MemberWorkload[Visitor]):
    STAY, MEMBERS_MAX = 0, 2

    def member(self, number: int) -> Visitor:
        return Visitor(self.cluster, f"visitor-{number}")


def visits() -> Visits:
    history = History(Visits, 1, flush="sync")
    history.make_world()
    return Visits(history)


def test_no_more_join_than_may_be_there() -> None:
    history = visits()
    for _ in range(4):
        history.do("join")
    assert [member.name for member in history.members] == ["visitor-1", "visitor-2"]


def test_the_last_one_that_leaves_is_replaced_and_some_stay() -> None:
    history = visits()
    history.join()
    history.do("leave")
    assert [member.gone for member in history.members] == [True, False]
    history.STAY = 1
    history.do("crash")
    assert [member.gone for member in history.members] == [True, False]


def test_other_kinds_are_methods_of_a_member_that_is_there() -> None:
    history = visits()
    history.do("greet")  # nobody is there
    history.join()
    history.do("greet")
    assert history.members[0].greeted == 1


def test_a_lost_connection_and_a_killed_broker_leave_a_history_that_goes_on() -> None:
    history = visits()
    history.join()
    history.cluster.run(ms=3_000)
    history.do("lose")
    history.do("broker")
    assert any("loses its connection" in line for line in history.cluster.timeline.history)
    assert history.cluster.brokers[0].running
