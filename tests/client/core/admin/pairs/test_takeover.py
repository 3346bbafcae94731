"""A takeover: asked of the slave of ours, and done once the name servers know it as the master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.client.core.admin.pairs.takeover import take_over
from halfmoon.errors import BrokerError, NetworkError, UsageError
from halfmoon.results import MasterTakeover
from halfmoon.wire.bodies import BrokerData, ClusterInfo, KVTable, to_json
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo, TakeOver
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import Reply, Scripted, Seen

MASTER, SLAVE, OTHER, APACHE = "master:1", "slave:1", "other:1", "apache:1"


class World:
    """An Apache master with slaves. After ``done_ms`` the asked one is the master, or with ``failure`` it says so."""

    def __init__(self, *, done_ms: int = 500, failure: str = "", answer: Reply | None = None, **behind: int) -> None:
        self.script, self.done_ms, self.failure = Scripted(), done_ms, failure
        self.core, self.began = admin(self.script), self.script.now
        self.behind = {f"{name}:1": count for name, count in (behind or {"slave": 10}).items()}
        self.script.on(GetBrokerClusterInfo, lambda seen: Reply(body=to_json(self._info())))
        self.script.on(GetBrokerRuntimeInfo, self._runtime)
        self.script.on(TakeOver, answer or Reply())

    @property
    def _is_done(self) -> bool:
        return self.script.now - self.began >= self.done_ms

    def _info(self) -> ClusterInfo:
        slaves = {3 + number: address for number, address in enumerate(self.behind)}
        addresses = {0: MASTER, 1: APACHE, **slaves}
        if self._is_done and not self.failure:
            addresses = {0: SLAVE, 1: MASTER}
        return ClusterInfo({"broker-a": BrokerData("c", "broker-a", addresses)}, {"c": ["broker-a"]})

    def _runtime(self, seen: Seen) -> Reply | Exception:
        if seen.address not in self.behind:
            return Reply(body=to_json(KVTable({})))
        if self._is_done and not self.failure:
            return Reply(body=to_json(KVTable({"brokerVersionDesc": "x"})))
        texts = {"slaveBehindBytes": str(self.behind[seen.address]), "takeover": self.failure if self._is_done else "begins"}
        return Reply(body=to_json(KVTable(texts)))

    def take_over(self, name: str = "broker-a", **more: Any) -> MasterTakeover:
        taken: MasterTakeover = self.script.run(take_over(self.core, name, **more))
        return taken


def test_it_returns_once_the_slave_is_registered_as_the_master() -> None:
    world = World()
    taken = world.take_over()
    assert (taken.broker, taken.was, taken.master) == ("broker-a", MASTER, SLAVE)
    assert 500 <= taken.took_ms < 1000
    assert [seen.address for seen in world.script.asked(TakeOver)] == [SLAVE]


def test_of_several_slaves_the_one_that_lacks_the_least_is_asked() -> None:
    world = World(other=11, slave=10)
    world.take_over()
    assert [seen.address for seen in world.script.asked(TakeOver)] == [SLAVE]


def test_a_slave_that_fails_says_why() -> None:
    with pytest.raises(NetworkError, match="slave:1 could not take over broker-a: the port is taken"):
        World(failure="failed: the port is taken").take_over()


def test_it_waits_no_longer_than_it_may() -> None:
    world = World(done_ms=1 << 40)
    with pytest.raises(NetworkError, match="slave:1 is not the master of broker-a within 60 s"):
        world.take_over()
    assert 60_000 <= world.script.now - world.began < 61_000


@pytest.mark.parametrize(
    ("world", "name", "reason"),
    [
        (World, "broker-z", "there is no broker 'broker-z'; known: broker-a"),
        (lambda: World(apache=1), "broker-a", "no slave of broker-a is a Halfmoon broker that answers"),
    ],
)
def test_who_cannot_be_replaced_is_told_why(world: Callable[[], World], name: str, reason: str) -> None:
    made = world()
    if "apache:1" in made.behind:
        made.behind.clear()
    with pytest.raises(UsageError, match=reason):
        made.take_over(name)


def test_a_refusal_of_the_slave_is_passed_on() -> None:
    with pytest.raises(BrokerError, match="not connected"):
        World(answer=Reply(1, remark="this slave cannot take over: not connected to the master")).take_over()
