"""A planned change of the master: asked of the master, and done once name servers know another of a higher epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.client.core.admin.pairs.switch import switch_master
from halfmoon.errors import BrokerError, NetworkError, UsageError
from halfmoon.results import MasterSwitch
from halfmoon.wire.bodies import BrokerData, ClusterInfo, KVTable, to_json
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo, SwitchMaster
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import Reply, Scripted, Seen

A, B = "broker-a:1", "broker-b:1"


def info(epoch: int | None) -> Reply:
    return Reply(body=to_json(KVTable({} if epoch is None else {"pairEpoch": str(epoch)})))


class World:
    """A pair at the name servers: ``masters`` are the address and epoch of its master by time, in ms; an empty one: none."""

    def __init__(self, *masters: tuple[int, str, int | None], switch: Reply | None = None) -> None:
        self.script = Scripted()
        self.core = admin(self.script)
        self.began, self.masters = self.script.now, masters
        self.script.on(GetBrokerClusterInfo, lambda seen: Reply(body=to_json(self._info())))
        self.script.on(GetBrokerRuntimeInfo, self._runtime)
        self.script.on(SwitchMaster, switch or Reply())

    def _now(self) -> tuple[str, int | None]:
        at = self.script.now - self.began
        return next((address, epoch) for since, address, epoch in reversed(self.masters) if since <= at)

    def _info(self) -> ClusterInfo:
        address, _ = self._now()
        return ClusterInfo({"broker-a": BrokerData("c", "broker-a", {0: address} if address else {1: B})}, {"c": ["broker-a"]})

    def _runtime(self, seen: Seen) -> Reply | Exception:
        address, epoch = self._now()
        return info(epoch) if seen.address == address else NetworkError("gone", seen.address)

    def switch(self, name: str = "broker-a", **more: Any) -> MasterSwitch:
        found: MasterSwitch = self.script.run(switch_master(self.core, name, **more))
        return found


def test_it_returns_once_another_master_of_a_higher_epoch_is_registered() -> None:
    world = World((0, A, 3), (500, "", None), (1500, B, 4))
    found = world.switch()
    assert (found.broker, found.was, found.master, found.epoch) == ("broker-a", A, B, 4)
    assert 1400 < found.took_ms < 2000
    assert [seen.address for seen in world.script.asked(SwitchMaster)] == [A]


def test_a_name_server_that_still_names_another_of_the_old_epoch_is_not_believed() -> None:
    found = World((0, A, 3), (200, B, 3), (900, B, 4)).switch()
    assert (found.master, found.epoch) == (B, 4)
    assert found.took_ms > 800


def test_a_master_that_has_to_take_the_lease_back_is_told() -> None:
    with pytest.raises(NetworkError, match=f"did not take over: {A} is the master again, epoch 4"):
        World((0, A, 3), (300, A, 4)).switch()


def test_it_waits_no_longer_than_it_may() -> None:
    world = World((0, A, 3), (300, "", None))
    with pytest.raises(NetworkError, match=r"within 30 s no other master of broker-a was registered"):
        world.switch()
    assert 30_000 <= world.script.now - world.began < 31_000


@pytest.mark.parametrize(
    ("world", "name", "reason"),
    [
        (lambda: World((0, A, 3)), "broker-z", "there is no broker 'broker-z'; known: broker-a"),
        (lambda: World((0, A, None)), "broker-a", "broker broker-a at broker-a:1 is not in a pair: start it with --lease"),
        (lambda: World((0, A, 3), switch=Reply(3, remark="x")), "broker-a", "broker broker-a at broker-a:1 cannot change its role"),
    ],
)
def test_who_cannot_be_switched_is_told_why(world: Callable[[], World], name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        world().switch(name)


def test_a_refusal_of_the_master_is_passed_on() -> None:
    with pytest.raises(BrokerError, match="the pair is not complete"):
        World((0, A, 3), switch=Reply(1, remark="this broker cannot give up its role: the pair is not complete")).switch()


def test_a_broker_without_a_master_is_told_with_the_member_that_waits() -> None:
    with pytest.raises(NetworkError, match="broker-a has no master; broker-b:1 follows and waits"):
        World((0, "", None)).switch()
