"""A broker that registers with a loopback address says so once as soon as it meets another machine, and says what to set."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies.reach import Reach
from halfmoon.testing.disk import SimDisk
from tests.broker.copies.serving_slave import SlaveTalk
from tests.broker.talk import Talk


@pytest.mark.parametrize("address", ["127.0.0.1:10911", "127.0.1.1:10911", "localhost:10911", "[::1]:10911", "::1:10911"])
def test_a_loopback_address_is_warned_of_once_as_soon_as_another_machine_is_met(address: str, caplog: Any) -> None:
    reach = Reach(address)
    for local in ("127.0.0.1:9876", "[::1]:9876", "::ffff:127.0.0.1:9876"):
        reach.met("the slave at", local)
    assert caplog.text == ""
    reach.met("the slave at", "10.0.0.2:40812")
    reach.met("the slave at", "10.0.0.3:40812")
    (record,) = caplog.records
    assert record.getMessage() == (
        f"no other machine can reach this broker, which registers as {address}: the slave at 10.0.0.2:40812 is on another machine;"
        " give --host the address of this machine, or set broker.address (brokerIP1)"
    )
    assert record.levelname == "WARNING"


def test_an_address_that_others_reach_is_never_warned_of(caplog: Any) -> None:
    reach = Reach("10.0.0.1:10911")
    reach.met("the slave at", "10.0.0.2:40812")
    reach.met_namesake("10.0.0.1:10911")
    assert caplog.text == ""


def test_two_members_that_register_with_one_loopback_address_are_on_two_machines(caplog: Any) -> None:
    reach = Reach("127.0.0.1:10911")
    reach.met_namesake("")
    reach.met_namesake("127.0.0.1:10921")
    assert caplog.text == ""
    reach.met_namesake("127.0.0.1:10911")
    assert "registers as 127.0.0.1:10911: the other member of the pair registers so, too; give --host" in caplog.text


@pytest.mark.parametrize(("remote", "count"), [("10.0.0.2:40812", 1), ("127.0.0.1:40812", 0)])
def test_master_and_slave_warn_when_they_meet_at_another_machine(remote: str, count: int, caplog: Any) -> None:
    master = Talk("master", disk=SimDisk(Random(3)))
    master.broker.copies.feeding.connected(1, remote, master.instant)
    assert caplog.text.count(f"the slave at {remote} is on another machine") == count
    slave = SlaveTalk(master)
    slave.standby.connected(1, remote, slave.instant)
    assert caplog.text.count(f"the master at {remote} is on another machine") == count
