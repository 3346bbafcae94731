"""How many connections an address may have, in a time of the test's own."""

from __future__ import annotations

import logging

import pytest

from halfmoon.runtime.server.places import MINUTE_S, Places, place_of
from tests.runtime.server.test_opening import Loop


def places(room: int, per_address_max: int) -> tuple[Loop, Places]:
    loop = Loop()
    return loop, Places(loop, room, per_address_max)  # type: ignore[arg-type]


def test_an_address_has_its_share_and_a_place_becomes_free_again() -> None:
    _, limited = places(100, 3)
    assert [limited.take(f"10.0.0.1:{port}") for port in range(5)] == [True, True, True, False, False]
    assert limited.take("10.0.0.2:1")
    limited.release("10.0.0.1:7")
    assert [limited.take("10.0.0.1:8"), limited.take("10.0.0.1:9")] == [True, False]


@pytest.mark.parametrize(("room", "given", "found"), [(10_000, 8_000, 8_000), (768, 8_000, 615), (1, 8_000, 1), (10_000, 50, 50)])
def test_a_fifth_of_the_room_is_left_to_others(room: int, given: int, found: int) -> None:
    assert places(room, given)[1].per_address_max == found


def test_without_a_limit_nothing_is_counted() -> None:
    _, limited = places(10, 0)
    assert all(limited.take("10.0.0.1:1") for _ in range(100))
    limited.release("10.0.0.1:1")


def test_nothing_is_kept_of_an_address_without_connections() -> None:
    _, limited = places(100, 3)
    for number in range(50):
        limited.take(f"10.0.0.{number}:1")
        limited.release(f"10.0.0.{number}:1")
    assert limited._counts == {}


@pytest.mark.parametrize(
    ("remote", "place"),
    [
        ("10.0.0.1:5000", "10.0.0.1"),
        ("[fd00:1:2:3:4::5]:80", "fd00:1:2:3::/64"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("[what:\n]:1", "what:\n"),
        ("unknown:0", "unknown"),
    ],
)
def test_addresses_of_ipv6_count_by_network(remote: str, place: str) -> None:
    assert place_of(remote) == place


def test_an_address_is_named_once_and_then_each_minute_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="halfmoon.serve")
    loop, limited = places(100, 1)
    limited.take("10.0.0.1:1")
    for port in range(100):
        limited.take(f"10.0.0.1:{port}")
    line = "connections are refused: 10.0.0.1 has 1, the bound of one address (connections_per_address_max)"
    assert [record.getMessage() for record in caplog.records] == [line]
    loop.go(MINUTE_S)
    assert [record.getMessage() for record in caplog.records[1:]] == [f"{line}, 99 times in the last minute"]
    loop.go(10 * MINUTE_S)
    assert len(caplog.records) == 2
    assert loop.timers == [], "nothing rings when nobody is refused"
    limited.take("10.0.0.1:1")
    assert len(caplog.records) == 3
    limited.close()
    assert loop.timers == []
