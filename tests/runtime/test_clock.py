"""The clock over a machine whose time is set forward and back."""

from halfmoon.runtime.clock import Clock

MS = 1_000_000


class Machine:
    def __init__(self) -> None:
        self.wall_ns, self.monotonic_ns = 1_700_000_000_000 * MS, 5_000 * MS

    def passes(self, ms: int) -> None:
        self.wall_ns += ms * MS
        self.monotonic_ns += ms * MS

    def clock(self) -> Clock:
        return Clock(lambda: self.wall_ns, lambda: self.monotonic_ns)


def test_time_is_the_systems_time() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passes(1234)
    assert clock.now() == 1_700_000_001_234


def test_a_forward_step_of_the_system_is_taken_at_once() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ns += 3_600_000 * MS
    assert clock.now() == 1_700_003_600_000


def test_time_goes_on_at_half_speed_after_the_system_was_set_back_until_both_agree() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ns -= 10_000 * MS
    first = clock.now()
    machine.passes(4_000)
    second = clock.now()
    machine.passes(16_000)
    third = clock.now()
    machine.passes(100)
    assert (first, second, third) == (1_700_000_000_000, 1_700_000_002_000, 1_700_000_010_000)
    assert clock.now() == 1_700_000_010_100


def test_steady_time_is_moved_by_no_setting_of_the_clock() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ns += 3_600_000 * MS
    machine.passes(1_000)
    machine.wall_ns -= 7_200_000 * MS
    machine.passes(1_000)
    assert clock.steady() == 7_000


def test_the_clock_knows_by_how_much_it_passed_otherwise_than_time_did() -> None:
    machine = Machine()
    clock = machine.clock()
    begun_ns = clock.ahead_ns
    machine.passes(1_000)
    clock.now()
    assert clock.ahead_ns == begun_ns
    machine.wall_ns += 3_600_000 * MS
    clock.now()
    assert clock.ahead_ns - begun_ns == 3_600_000 * MS
    machine.wall_ns -= 3_600_000 * MS
    machine.passes(10_000)
    clock.now()
    assert clock.ahead_ns - begun_ns == 3_595_000 * MS


def test_what_passed_since_the_time_was_asked_is_not_moved_by_a_step() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.now()
    began_ns = clock.seen_ns
    machine.passes(42)
    machine.wall_ns += 3_600_000 * MS
    clock.now()
    machine.passes(8)

    assert clock.passed_ns(began_ns) == 50 * MS
