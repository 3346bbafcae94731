"""What a start takes of the saved tables, and that it says when that is not what was saved last."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.broker.tables import Tables
from halfmoon.errors import PeerError, StoreError
from simulation.disk import SimDisk

PATH = "config/consumerOffset.json"


def load(disk: SimDisk) -> bytes | None:
    def parse(data: bytes) -> bytes:
        if data.startswith(b"bad"):
            raise PeerError("not a table")
        return data

    return Tables(disk).load(PATH, parse)


def test_a_table_that_was_saved_is_taken_without_a_word(caplog):
    disk = SimDisk(Random(1))
    assert load(disk) is None
    disk.save(PATH, b"older")
    disk.save(PATH, b"newer")
    assert load(disk) == b"newer"
    assert caplog.text == ""


@pytest.mark.parametrize(("data", "why"), [(b"", "is empty"), (b" \n", "is empty"), (b"bad", "not a table"), (None, "is missing")])
def test_that_the_copy_saved_before_is_taken_is_said(data: bytes | None, why: str, caplog):
    disk = SimDisk(Random(1))
    disk.save(PATH, b"older")
    disk.save(PATH, b"newer")
    if data is None:
        disk.remove(PATH)
    else:
        disk.save(PATH, data, keep_previous=False)
    assert load(disk) == b"older"
    assert why in caplog.text
    assert f"{PATH}.bak, later changes are lost" in caplog.text


def test_that_an_empty_table_is_begun_with_is_said(caplog):
    disk = SimDisk(Random(1))
    disk.save(PATH, b"")
    assert load(disk) is None
    assert f"{PATH} is empty: the broker begins without what was saved there" in caplog.text


def test_a_table_that_cannot_be_read_at_all_is_named_with_the_remedy():
    disk = SimDisk(Random(1))
    disk.save(PATH, b"bad")
    disk.save(PATH, b"bad too")
    with pytest.raises(StoreError, match=f"{PATH}.*remove it"):
        load(disk)
