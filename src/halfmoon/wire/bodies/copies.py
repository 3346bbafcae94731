"""Bodies about copies of the log. Holds shapes; decides nothing. `halfmoon.wire.bodies` gives the names of the bodies."""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from halfmoon.wire.json import Body
from halfmoon.wire.table import I32, I64


class SlaveState(Body):
    """How far a slave has copied its master's log. Follows HARuntimeInfo.HAConnectionRuntimeInfo (5.3.3).

    Halfmoon: ``behind_ms``, for how long the log has held bytes that the slave lacks.
    """

    addr: str = ""
    slave_ack_offset: I64 = 0
    diff: I64 = 0
    in_sync: bool = False
    transferred_byte_in_second: I64 = 0
    transfer_from_where: I64 = 0
    behind_ms: I64 = 0


class MasterState(Body):
    """How far a slave has copied its master's log. Follows HARuntimeInfo.HAClientRuntimeInfo (5.3.3)."""

    master_addr: str = ""
    transferred_byte_in_second: I64 = 0
    max_offset: I64 = 0
    last_read_timestamp: I64 = 0
    last_write_timestamp: I64 = 0
    master_flush_offset: I64 = 0
    activated: bool = False


class CopiesState(Body):
    """State of the copies of a master's log: reply of 907, of a slave with what it knows. Follows HARuntimeInfo (5.3.3)."""

    master: bool = True
    master_commit_log_max_offset: I64 = 0
    in_sync_slave_nums: I32 = 0
    ha_connection_info: list[SlaveState] = []
    ha_client_runtime_info: MasterState | None = None
