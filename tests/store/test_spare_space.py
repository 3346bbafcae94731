"""The space that is kept for a start on a full disk."""

from __future__ import annotations

from errno import EIO, ENOSPC
from random import Random

from halfmoon.store.layout import SPARE
from halfmoon.store.spare_space import SPARE_BYTES, SpareSpace
from halfmoon.testing.disk import SimDisk


def test_the_space_is_taken_once_given_up_on_a_full_disk_and_taken_again():
    disk = SimDisk(Random(1))
    spare = SpareSpace(disk)
    assert spare.take() is None
    assert disk.file_size(SPARE) == SPARE_BYTES
    assert not spare.give_up(OSError(EIO, "broken")), "only a full disk needs it"
    assert spare.give_up(OSError(ENOSPC, "full"))
    assert not disk.exists(SPARE)
    assert not spare.give_up(OSError(ENOSPC, "full")), "there is none left"
    assert spare.take() is None
    assert disk.exists(SPARE)
