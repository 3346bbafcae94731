"""The state of the slaves, for tools and monitoring; and who waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker.settings import BrokerRole
from halfmoon.wire.bodies import CopiesState, KVTable, from_json
from halfmoon.wire.headers.admin import GetBrokerHaStatus, GetBrokerRuntimeInfo
from tests.broker.copies.slave import Port
from tests.broker.copies.test_feeding import fill


@pytest.fixture
def port(talk: Any) -> Port:
    """A port with a slave that lacks 100 bytes and, for 250 ms, a message."""
    fill(talk)
    port = Port(talk)
    port.report(port.connect(1), talk.broker.store.end_offset - 100)
    fill(talk, 1)
    talk.now += 250
    return port


def test_the_state_of_copies_is_told_as_rocketmq_5_does(talk: Any, port: Port) -> None:
    end = talk.broker.store.end_offset
    [slave] = (state := from_json(CopiesState, talk.ask(GetBrokerHaStatus()).body)).ha_connection_info
    assert (state.master, state.master_commit_log_max_offset, state.in_sync_slave_nums) == (True, end, 1)
    assert (slave.addr, slave.diff, slave.in_sync, slave.behind_ms) == ("10.0.0.9:4000", end - slave.slave_ack_offset, True, 250)
    assert slave.diff > 1100


def test_slaves_are_monitored(talk: Any, port: Port) -> None:
    samples = {sample[0].name: sample[2] for sample in talk.broker.copies.samples(("b",), talk.instant) if sample}
    assert samples.pop("halfmoon_slave_behind_bytes") > 1100
    assert samples == {"halfmoon_slaves": 1, "halfmoon_slave_behind_seconds": 0.25}


@pytest.mark.parametrize(
    ("settings", "waits"),
    [({}, False), ({"role": BrokerRole.SYNC_MASTER}, True), ({"role": BrokerRole.SYNC_MASTER, "copies_wanted": 1}, False)],
)
def test_replies_wait_for_slaves_of_a_sync_master_that_wants_copies(make_talk: Any, settings: dict[str, Any], waits: bool) -> None:
    talk = make_talk(**settings)
    assert (talk.broker.pending_replies.slaves is not None) is waits


def test_a_sync_master_without_enough_slaves_reports_a_fault(make_talk: Any) -> None:
    def faults() -> str | None:
        return from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table.get("brokerFaults")

    talk = make_talk(role=BrokerRole.SYNC_MASTER)
    assert faults() == "sends are not copied: 0 of 1 slaves are connected and not too far behind"
    port = Port(talk)
    port.report(port.connect(1), talk.broker.store.end_offset)
    assert faults() is None
    port.core.lost(1, talk.instant)
    assert faults() is not None
    talk = make_talk()
    assert faults() is None
