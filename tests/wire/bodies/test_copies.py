"""The state of copies has the names of RocketMQ 5."""

from __future__ import annotations

from halfmoon.wire.bodies import CopiesState, SlaveState, from_json, to_json


def test_the_state_of_copies_has_the_names_of_rocketmq_5() -> None:
    state = CopiesState(master_commit_log_max_offset=7, in_sync_slave_nums=1, ha_connection_info=[SlaveState(addr="a:1", diff=3)])
    text = to_json(state)
    assert from_json(CopiesState, text) == state
    for name in (b"master", b"masterCommitLogMaxOffset", b"inSyncSlaveNums", b"haConnectionInfo", b"slaveAckOffset", b"inSync",
                 b"transferredByteInSecond", b"transferFromWhere"):  # fmt: skip
        assert b'"%s":' % name in text
