"""Messages become rows of an Arrow file in batches that are bounded."""

from __future__ import annotations

from operator import attrgetter

import pytest

from halfmoon.model import StoredMessage

pa = pytest.importorskip("pyarrow")
BODY = attrgetter("body")


def test_batches_are_bounded_by_rows_and_by_bytes(tmp_path):
    from halfmoon.cli.store import arrow

    def message(number: int, size: int = 0) -> StoredMessage:
        hosts = {"born_host": "127.0.0.1:1", "store_host": "127.0.0.1:2", "offset_msg_id": f"{number:032X}"}
        numbers = {"flag": 0, "sys_flag": 0, "reconsume_times": 0, "prepared_transaction_offset": 0, "body_crc": 0}
        times = {"born_ms": 1, "store_ms": 2}
        place = {"queue_id": 0, "queue_offset": number, "physical_offset": number * 1000, "size_bytes": 200}
        return StoredMessage(topic="t", body=bytes(size), properties={"K": str(number)}, **hosts, **numbers, **times, **place)

    large = arrow.BYTES_MAX // 2 - 1
    assert arrow.write_arrow(iter(map(message, range(10_000))), tmp_path / "rows", BODY) == 10_000
    assert arrow.write_arrow((message(number, large) for number in range(7)), tmp_path / "bytes", BODY) == 7

    def batches(name: str) -> list[int]:
        with pa.OSFile(str(tmp_path / name)) as file, pa.ipc.open_file(file) as reader:
            return [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]

    assert batches("rows") == [arrow.ROWS_MAX] * 2 + [10_000 - 2 * arrow.ROWS_MAX]
    assert batches("bytes") == [3, 3, 1]


def test_no_messages_are_a_file_without_rows(tmp_path):
    from halfmoon.cli.store import arrow

    assert arrow.write_arrow(iter(()), tmp_path / "none", BODY) == 0
    with pa.OSFile(str(tmp_path / "none")) as file:
        assert pa.ipc.open_file(file).read_all().num_rows == 0
