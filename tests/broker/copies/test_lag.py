"""How far a slave is behind its master, as it knows it."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.broker.copies import lag
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import CopiesState, KVTable, from_json
from halfmoon.wire.headers.admin import GetBrokerHaStatus, GetBrokerRuntimeInfo
from tests.broker.copies.serving_slave import SlaveTalk
from tests.broker.talk import Talk


@pytest.fixture
def slave() -> SlaveTalk:
    """A slave that lacks its master's second message."""
    master = Talk("master", disk=SimDisk(Random(3)))
    master.send("T", b"1")
    made = SlaveTalk(master)
    made.copy()
    master.send("T", b"2")
    made.standby.end_offset = master.broker.store.end_offset
    made.wait(0)
    return made


def known(slave: SlaveTalk) -> tuple[int, int]:
    texts = from_json(KVTable, slave.ask(GetBrokerRuntimeInfo()).body).table
    samples = {sample[0].name: sample[2] for sample in slave.broker.lag.samples(("broker-a",), slave.instant) if sample}
    behind = int(texts["slaveBehindBytes"]), int(texts["slaveBehindMs"])
    assert (samples["halfmoon_slave_lag_bytes"], samples["halfmoon_slave_lag_seconds"]) == (behind[0], behind[1] / 1000)
    return behind


def test_it_is_behind_since_it_knew_that_the_masters_log_has_more(slave: SlaveTalk) -> None:
    missing = slave.standby.end_offset - slave.standby.store.end_offset
    assert known(slave) == (missing, 0)
    slave.wait(2_500)
    assert known(slave) == (missing, 2_500)
    slave.master.send("T", b"3")
    slave.standby.end_offset = slave.master.broker.store.end_offset
    slave.wait(1_500)
    slave.copy_log(missing)
    assert known(slave)[0] == slave.standby.end_offset - slave.standby.store.end_offset
    assert 0 < known(slave)[1] < 1_500, "since the third message"
    slave.copy_log()
    slave.wait(lag.LOOK_MS)
    assert known(slave) == (0, 0)


def test_metrics_and_runtime_information_tell_that_transactions_are_not_indexed(slave: SlaveTalk) -> None:
    index = slave.standby.transactions.index
    assert index is not None
    slave.standby.problem = None
    slave.standby.following.connected(1, "10.0.0.1:10912", slave.instant)

    def told() -> tuple[float, str | None]:
        samples = {sample[0].name: sample[2] for sample in slave.broker.lag.samples(("broker-a",), slave.instant) if sample}
        indexed = samples["halfmoon_slave_transactions_indexed"]
        assert isinstance(indexed, int)
        return indexed, from_json(KVTable, slave.ask(GetBrokerRuntimeInfo()).body).table.get("brokerFaults")

    assert told() == (1, None)
    index.stop_for(OSError("Input/output error"))
    fault = "the transaction index cannot be written: Input/output error (a broker that starts here reads the log for it)"
    assert told() == (0, fault)


def test_the_ends_that_are_remembered_are_bounded(slave: SlaveTalk) -> None:
    for _ in range(lag.MARKS_MAX + 10):
        slave.standby.end_offset += 1
        slave.wait(lag.LOOK_MS)
    assert known(slave)[1] == (lag.MARKS_MAX - 1) * lag.LOOK_MS


def test_mqadmin_is_told_the_master_and_both_ends(slave: SlaveTalk) -> None:
    slave.standby.following.master = "10.0.0.1:10912"
    state = from_json(CopiesState, slave.ask(GetBrokerHaStatus()).body)
    assert (state.master, state.master_commit_log_max_offset) == (False, slave.standby.end_offset)
    told = state.ha_client_runtime_info
    assert told is not None
    assert (told.master_addr, told.activated, told.max_offset) == ("10.0.0.1:10912", False, slave.standby.store.end_offset)
    assert told.last_read_timestamp == slave.now
    slave.standby.problem = None
    slave.standby.following.connected(1, "10.0.0.1:10912", slave.instant)
    following = [sample[2] for sample in slave.broker.lag.samples(("b",), slave.instant) if sample]
    assert following[0] == 1
