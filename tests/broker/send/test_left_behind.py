"""A send that was answered leaves nothing in memory, whatever its reply waited for: the device, slaves, a pair's other member."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker.copies.slave import Port, master_lease
from tests.broker.talk import send_header
from tests.columns.test_memory import CALLS, left_behind

PROMISES = {
    "nothing": {},
    "the device": {"store": {"flush_disk_type": "SYNC_FLUSH"}},
    "slaves": {"role": "SYNC_MASTER"},
    "the device and slaves": {"role": "SYNC_MASTER", "store": {"flush_disk_type": "SYNC_FLUSH"}},
    "the other member": {"lease": master_lease},
    "the device and the other member": {"lease": master_lease, "store": {"flush_disk_type": "SYNC_FLUSH"}},
}
LEFT_MAX = CALLS // 2
"""Blocks that the log and its indexes may take beside: a held reply alone would leave several a send."""


@pytest.mark.parametrize("late", [False, True], ids=["in time", "after its deadline"])
@pytest.mark.parametrize("promise", PROMISES)
def test_a_send_that_was_answered_leaves_nothing_behind(make_talk: Callable[..., object], promise: str, late: bool) -> None:
    talk = make_talk(**PROMISES[promise])
    port = Port(talk)
    slave = port.connect(1) if promise not in ("nothing", "the device") else None

    def copy() -> None:
        if slave is None:
            return
        if talk.broker.copies.feeding.pair is not None:
            port.follow(slave)
        else:
            port.report(slave, talk.broker.store.end_offset)
        port.take(slave)

    copy()

    def send() -> object:
        opaque = talk.post(send_header())
        talk.turn()
        if late:
            talk.wait(6_000)
        copy()
        talk.wait(50)
        copy()
        talk.turn()
        answer = talk.answer(opaque)
        assert answer is not None
        assert answer.code in (0, 10, 11, 12)
        return answer

    for _ in range(2 * CALLS):  # what is kept of the last sends fills up
        send()

    assert min(left_behind(send) for _ in range(3)) < LEFT_MAX
