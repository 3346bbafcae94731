"""The lock-out: who is locked out when and for how long, who never is, and that nobody fills memory or burns the processor."""

from __future__ import annotations

import sys
import time

import pytest

from halfmoon.console.access.attempts import ENTRIES_MAX, HOUR_MS, MINUTE_MS, Attempts, network_of

HERE, THERE = "192.0.2.1", "198.51.100.7"


@pytest.fixture
def attempts(clock) -> Attempts:
    """Nobody has failed yet."""
    return Attempts(clock)


def addresses(count: int) -> list[str]:
    return [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(count)]


def test_five_failures_of_a_name_from_an_address_lock_the_pair_for_a_minute(attempts, clock):
    assert [attempts.failed("ada", HERE) for _ in range(5)] == [0, 0, 0, 0, MINUTE_MS]

    assert attempts.refused_ms("ada", HERE) == MINUTE_MS
    assert attempts.refused_ms("bob", HERE) == attempts.refused_ms("ada", THERE) == 0
    clock.passes(59.999)
    assert attempts.refused_ms("ada", HERE) == 1
    clock.passes(0.001)
    assert attempts.refused_ms("ada", HERE) == 0


def test_each_further_failure_locks_the_pair_for_twice_as_long_up_to_an_hour(attempts, clock):
    for _ in range(4):
        attempts.failed("ada", HERE)
    locks = []
    for _ in range(9):
        locks.append(attempts.failed("ada", HERE) // MINUTE_MS)
        clock.passes(locks[-1] * 60)
        assert attempts.refused_ms("ada", HERE) == 0

    assert locks == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_success_forgets_what_the_pair_failed_before(attempts):
    for _ in range(4):
        attempts.failed("ada", HERE)
    attempts.succeeded("ada", HERE)

    assert [attempts.failed("ada", HERE) for _ in range(5)] == [0, 0, 0, 0, MINUTE_MS]


def test_a_day_without_failures_forgets_them_and_the_length_of_the_lock(attempts, clock):
    for _ in range(5):
        attempts.failed("ada", HERE)
    clock.passes(60)
    assert attempts.failed("ada", HERE) == 2 * MINUTE_MS
    clock.passes(86_400)

    assert [attempts.failed("ada", HERE) for _ in range(5)] == [0, 0, 0, 0, MINUTE_MS]


def test_fifty_failures_from_an_address_in_ten_minutes_lock_it_for_ten(attempts, clock):
    for number in range(49):
        assert attempts.failed(f"user{number}", HERE) == 0
        clock.passes(12)

    assert attempts.failed("user49", HERE) == 10 * MINUTE_MS
    assert attempts.refused_ms("anybody", HERE) == 10 * MINUTE_MS
    assert attempts.refused_ms("anybody", THERE) == 0
    clock.passes(600)
    assert attempts.refused_ms("anybody", HERE) == 0
    assert attempts.failed("user50", HERE) == 0


def test_fifty_failures_in_more_than_ten_minutes_lock_nobody_out(attempts, clock):
    for number in range(500):
        assert attempts.failed(f"user{number}", HERE) == 0
        clock.passes(12.5)


def test_a_success_does_not_clear_the_address(attempts):
    for number in range(49):
        attempts.failed(f"user{number}", HERE)
    attempts.succeeded("mallory", HERE)

    assert attempts.failed("user49", HERE) == 10 * MINUTE_MS


def test_who_guesses_many_names_on_a_machine_locks_out_nobody_who_has_logged_in_there(attempts):
    attempts.succeeded("ada", HERE)
    for number in range(60):
        attempts.failed(f"user{number}", HERE)

    assert attempts.refused_ms("ada", HERE) == 0
    assert attempts.refused_ms("ada", THERE) == 0
    assert attempts.refused_ms("grace", HERE) > 0


def test_a_hundred_failures_of_a_name_from_everywhere_lock_it_for_ten_minutes_but_not_where_it_succeeded(attempts, clock):
    attempts.succeeded("ada", HERE)
    for address in addresses(99):
        assert attempts.failed("ada", address) == 0

    assert attempts.failed("ada", THERE) == 10 * MINUTE_MS
    assert attempts.refused_ms("ada", "203.0.113.5") == 10 * MINUTE_MS
    assert attempts.refused_ms("bob", "203.0.113.5") == 0
    assert attempts.refused_ms("ada", HERE) == 0, "strangers do not lock her out"
    clock.passes(600)
    assert attempts.refused_ms("ada", THERE) == 0


def test_a_hundred_failures_of_a_name_in_more_than_an_hour_lock_nobody_out(attempts, clock):
    waits = []
    for address in addresses(500):
        waits.append(attempts.failed("ada", address))
        clock.passes(36.5)
    assert waits == [0] * 500


def test_where_a_name_succeeded_it_is_still_locked_after_five_failures(attempts):
    attempts.succeeded("ada", HERE)

    assert [attempts.failed("ada", HERE) for _ in range(5)][-1] == MINUTE_MS


@pytest.mark.parametrize("step_s", [-60, -3_600, -86_400 * 365, 86_400 * 365])
def test_no_clock_that_is_set_locks_anybody_out_for_long(attempts, clock, step_s):
    for _ in range(5):
        attempts.failed("ada", HERE)

    clock.passes(step_s)

    assert attempts.refused_ms("ada", HERE) <= MINUTE_MS
    clock.passes(120)
    assert attempts.refused_ms("ada", HERE) == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
        ("unknown", "_hidden", False),
        ("x" * 1_000_000 + "1", "x" * 1_000_000 + "2", True),
    ],
)
def test_an_ipv6_address_counts_as_its_network(attempts, one, other, same):
    for _ in range(5):
        attempts.failed("ada", one)

    assert (attempts.refused_ms("ada", other) > 0) is same
    assert len(network_of(one)) <= 64


def test_ten_thousand_wrong_passwords_are_nearly_all_refused_before_any_is_hashed(attempts, clock):
    hashed, before = 0, time.process_time()
    for _ in range(10_000):
        if not attempts.refused_ms("ada", HERE):
            hashed += 1
            attempts.failed("ada", HERE)
        clock.passes(0.36)  # an hour in all

    assert hashed <= 10
    assert time.process_time() - before < 5


def test_names_and_addresses_of_any_number_and_length_take_bounded_memory_and_that_is_logged_once_a_minute(attempts, clock, caplog):
    for number, address in enumerate(addresses(ENTRIES_MAX + 500)):
        attempts.failed(f"{number}" + "\U0001f600" * 500, address)
        attempts.succeeded(f"{number}" + "\U0001f600" * 500, address)
        attempts.failed(f"{number}", address)

    assert [len(table) for table in (attempts._failures, attempts._succeeded)] == [ENTRIES_MAX] * 2
    assert max(sys.getsizeof(name) for _, name, _ in attempts._succeeded) < 400
    said = lambda: [text for text in caplog.messages if "the oldest are forgotten" in text]  # noqa: E731 - others may say something, too
    assert len(said()) == 1
    clock.passes(60)
    attempts.failed("one more", THERE)
    assert len(said()) == 2


def test_one_key_takes_bounded_memory_however_often_it_fails(attempts, clock):
    for _ in range(1_000):
        attempts.failed("ada", HERE)

    assert sorted(len(times) for times, _, _ in attempts._failures.values()) == [5, 50, 100]
    assert attempts.refused_ms("ada", HERE) == HOUR_MS
