"""A loop stays awake for a client that is alone and quick, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.runtime.server.busy_polling import BUSY_POLL_US, LOST_NS, PAUSE_NS, QUICK_MIN, BusyPolling

AWAKE_NS = BUSY_POLL_US * 1_000


class Loop:
    """What `BusyPolling` sees of a loop: callbacks of the next round, and a clock that a test moves."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.now = 1_000_000_000
        self.polling = BusyPolling(self.soon.append, lambda: self.now)

    def requests(self, count: int, gap_ns: int = AWAKE_NS // 3) -> None:
        for _ in range(count):
            self.now += gap_ns
            self.polling.answered()

    def round(self) -> bool:
        """Run what is due; return whether the loop would not sleep now."""
        due, self.soon[:] = list(self.soon), []
        for call in due:
            call()
        return bool(self.soon)


def test_a_quick_client_keeps_the_loop_awake_until_it_falls_silent() -> None:
    loop = Loop()
    loop.requests(QUICK_MIN)
    assert not loop.soon, "not quick for long enough yet"
    loop.requests(1)
    assert loop.polling.is_polling
    for _ in range(5):
        assert loop.round()
    loop.now += AWAKE_NS
    assert not loop.round()
    assert not loop.polling.is_polling


def test_one_look_a_round_however_many_requests_come() -> None:
    loop = Loop()
    loop.requests(10 * QUICK_MIN)
    assert len(loop.soon) == 1
    loop.round()
    loop.requests(3)
    assert len(loop.soon) == 1


def test_a_client_that_takes_its_time_lets_the_loop_sleep() -> None:
    loop = Loop()
    loop.requests(1000, AWAKE_NS)
    assert not loop.soon

    loop.requests(QUICK_MIN + 1)
    assert loop.round()
    loop.requests(1, 2 * AWAKE_NS)
    assert not loop.round(), "one pause is enough"
    loop.requests(QUICK_MIN - 1)
    assert not loop.soon
    loop.requests(1)
    assert loop.round()


def test_a_loop_that_others_took_the_core_from_sleeps_for_a_while() -> None:
    loop = Loop()
    loop.requests(QUICK_MIN + 1)
    assert loop.round()
    loop.now += LOST_NS + 1
    assert not loop.round()
    loop.requests(PAUSE_NS // AWAKE_NS)
    assert not loop.soon, "however quickly requests come"
    loop.requests(2 * PAUSE_NS // AWAKE_NS + QUICK_MIN)
    assert loop.round()


def test_a_loop_that_is_told_to_always_sleeps() -> None:
    loop = Loop()
    loop.polling = BusyPolling(loop.soon.append, lambda: loop.now, busy_poll_us=0)
    loop.requests(3 * QUICK_MIN, 1)

    assert not loop.soon
    assert not loop.polling.is_polling
