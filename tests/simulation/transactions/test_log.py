"""What a log says of transactions: the first record about a half message decides, a resumed one speaks for the one before."""

from __future__ import annotations

from simulation.transactions.log import COMMITTED, EXPIRED, PREPARED, ROLLED_BACK, ExpiredRecord, HalfRecord, TxLog, VisibleRecord


def half(index: int, place: int, *, resumed: bool = False) -> HalfRecord:
    return HalfRecord(place, 100, index, "P.1-1", "P", "orders", 0, b"P.1-1|", 0, resumed)


def visible(place: int, half_offset: int) -> VisibleRecord:
    return VisibleRecord(place, half_offset, "orders", 0, 0, "P.1-1", b"P.1-1|", 0)


def expired(place: int, half_offset: int) -> ExpiredRecord:
    return ExpiredRecord(place, half_offset, "P.1-1", "P", "checked", 15, [], 0)


def test_the_first_record_about_a_half_message_is_its_state() -> None:
    log = TxLog(halves={0: half(0, 0), 1: half(1, 100), 2: half(2, 200)})
    log.visible, log.ops = [visible(300, 0)], [(400, 0), (500, 1)]
    assert log.states() == {0: COMMITTED, 1: ROLLED_BACK, 2: PREPARED}


def test_what_expired_may_be_decided_after_that() -> None:
    log = TxLog(halves={0: half(0, 0)}, ops=[(200, 0)], expired=[expired(100, 0)])
    assert log.outcomes() == {0: EXPIRED}
    log.late_rollbacks = {0}
    assert log.outcomes() == {0: ROLLED_BACK}
    log.visible = [visible(300, 0)]
    assert log.outcomes() == {0: COMMITTED}


def test_a_resumed_half_message_speaks_for_the_one_that_expired() -> None:
    log = TxLog(halves={0: half(0, 0), 1: half(1, 300, resumed=True)}, ops=[(200, 0)], expired=[expired(100, 0)])
    assert log.copied() == {0}
    assert log.resumed() == [log.halves[1]]
    assert log.newest() == {0: 1, 1: 1}
    assert log.outcomes() == {0: PREPARED, 1: PREPARED}
