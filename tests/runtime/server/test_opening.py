"""Who may take how long for a handshake, in a time of the test's own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfmoon.logs import LINES_A_MINUTE
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.opening import HANDSHAKE_S, HANDSHAKES_MAX, STEPS_A_TURN, Handshakes, Refusals
from halfmoon.settings.networks import Networks
from halfmoon.settings.tls import TlsMode, TlsSettings
from tests.authority import Authority


class Loop:
    """A loop whose time is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, function: Callable[[], None]) -> Any:
        entry = (when, function)
        self.timers.append(entry)

        class Timer:
            def cancel(timer) -> None:
                self.timers.remove(entry)

        return Timer()

    def call_soon(self, function: Callable[[], None]) -> None:
        self.soon.append(function)

    def round(self) -> None:
        """What was called soon."""
        soon, self.soon = self.soon, []
        for function in soon:
            function()

    def call_later(self, delay: float, function: Callable[[], None]) -> Any:
        return self.call_at(self.now + delay, function)

    def go(self, until: float) -> None:
        while self.timers and min(self.timers)[0] <= until:
            entry = min(self.timers, key=lambda each: each[0])
            self.timers.remove(entry)
            self.now = entry[0]
            entry[1]()
        self.now = until


class Connection:
    """Remembers why it was refused."""

    def __init__(self, remote: str = "192.0.2.1:4711") -> None:
        self.remote = remote
        self.reason = ""
        self.took: list[bytes] = []
        self.is_held = False

    def shake(self, data: bytes) -> None:
        self.took.append(data)
        self.is_held = False

    def hold(self) -> None:
        self.is_held = True

    def refuse(self, reason: str) -> None:
        self.reason = reason

    def late(self) -> None:
        self.reason = "late"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    pair = Authority(tmp_path).pair("server")
    return Certificates(TlsSettings(server_cert=pair.cert, server_key=pair.key, server_mode=TlsMode.ENFORCING))


def test_each_handshake_has_its_time_and_one_timer_watches_all(certificates: Certificates) -> None:
    loop = Loop()
    opening = Handshakes(loop, certificates)  # type: ignore[arg-type]
    first, second, quick = Connection(), Connection(), Connection()
    opening.begin(first)
    loop.go(3)
    opening.begin(second)
    opening.begin(quick)
    assert len(loop.timers) == 1
    assert opening.over(quick)
    assert not opening.over(quick)
    loop.go(HANDSHAKE_S + 1)
    assert (bool(first.reason), bool(second.reason)) == (True, False)
    loop.go(HANDSHAKE_S + 3)
    assert second.reason
    assert not quick.reason
    assert loop.timers == []


def test_the_oldest_makes_room_for_one_too_many(certificates: Certificates) -> None:
    loop = Loop()
    opening = Handshakes(loop, certificates)  # type: ignore[arg-type]
    connections = [Connection() for _ in range(HANDSHAKES_MAX + 1)]
    for connection in connections:
        opening.begin(connection)
    assert [connection for connection in connections if connection.reason] == connections[:1]


def test_who_begins_handshakes_by_the_thousand_cuts_its_own(certificates: Certificates) -> None:
    loop = Loop()
    opening = Handshakes(loop, certificates)  # type: ignore[arg-type]
    early, patient = Connection("198.51.100.1:1"), Connection("[2001:db8::1]:1")
    opening.begin(early)
    flood: list[Connection] = []
    for turn in range(3 * HANDSHAKES_MAX // 64):
        for _ in range(64):
            flood.append(Connection())
            opening.begin(flood[-1])
            opening.step(flood[-1], b"hello")
        if turn == HANDSHAKES_MAX // 64:
            opening.begin(patient)
            opening.step(patient, b"hello")
        for cut in flood:
            if cut.reason:
                opening.over(cut)
        loop.round()
    assert (early.reason, patient.reason) == ("", "")
    assert patient.took == [b"hello"]
    assert sum(bool(connection.reason) for connection in flood) == len(flood) + 2 - HANDSHAKES_MAX
    for connection in [early, patient, *flood]:
        opening.over(connection)
    assert opening.count == 0


def test_who_goes_on_from_a_preamble_to_a_handshake_has_the_whole_time_again(certificates: Certificates) -> None:
    loop = Loop()
    opening = Handshakes(loop, certificates, Networks("10.0.0.0/8"))  # type: ignore[arg-type]
    proxied, other = Connection(), Connection()
    opening.begin(proxied)
    loop.go(1)
    opening.begin(other)
    loop.go(5)
    opening.begin(proxied)
    loop.go(HANDSHAKE_S + 2)
    assert (proxied.reason, other.reason) == ("", "late")
    assert opening.may_be_proxied("10.1.2.3:4")
    assert not opening.may_be_proxied("192.0.2.1:4")
    assert not Handshakes(loop, None).may_be_proxied("10.1.2.3:4")  # type: ignore[arg-type]


def test_a_turn_takes_a_share_of_the_handshakes_and_the_others_come_in_order(certificates: Certificates) -> None:
    loop = Loop()
    opening = Handshakes(loop, certificates)  # type: ignore[arg-type]
    connections = [Connection() for _ in range(3 * STEPS_A_TURN)]
    for connection in connections:
        opening.step(connection, b"hello")
    first, second, third = (connections[at : at + STEPS_A_TURN] for at in range(0, len(connections), STEPS_A_TURN))
    assert [connection for connection in connections if connection.took] == first
    assert [connection for connection in connections if connection.is_held] == second + third
    opening.step(third[0], b" again")  # it was read before it was held
    opening.over(third[1])  # it is gone
    newcomer = Connection()
    loop.round()
    opening.step(newcomer, b"hello")
    assert [connection for connection in connections if connection.took] == first + second
    loop.round()
    assert (third[0].took, third[1].took, newcomer.took) == ([b"hello again"], [], [b"hello"])
    assert not newcomer.is_held
    loop.round()
    loop.round()
    assert loop.soon == [], "nothing is called when nobody waits"


def test_a_lone_handshake_waits_for_nothing(certificates: Certificates) -> None:
    loop = Loop()
    opening = Handshakes(loop, certificates)  # type: ignore[arg-type]
    for _ in range(3):
        for _ in range(STEPS_A_TURN):
            connection = Connection()
            opening.step(connection, b"hello")
            assert connection.took == [b"hello"]
        loop.round()


def test_nothing_is_watched_after_the_close(certificates: Certificates) -> None:
    loop = Loop()
    opening = Handshakes(loop, certificates)  # type: ignore[arg-type]
    opening.begin(Connection())
    opening.close()
    opening.close()
    assert loop.timers == []


def test_only_enforcing_takes_no_plain_text(certificates: Certificates) -> None:
    opening = Handshakes(Loop(), certificates)  # type: ignore[arg-type]
    assert not opening.takes_plain
    certificates.mode = TlsMode.PERMISSIVE
    assert opening.takes_plain
    assert opening.context is certificates.context
    assert Handshakes(Loop(), None).context is None  # type: ignore[arg-type]
    assert Handshakes(Loop(), None).takes_plain  # type: ignore[arg-type]


def test_strangers_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="halfmoon.serve")
    loop = Loop()
    refusals = Refusals(loop)  # type: ignore[arg-type]
    for _ in range(LINES_A_MINUTE + 50):
        refusals.warning("refused: %s", "x")
    assert len(caplog.records) == LINES_A_MINUTE
    loop.now = 61
    refusals.warning("refused: %s", "y")
    assert [record.getMessage() for record in caplog.records[LINES_A_MINUTE:]] == [
        "suppressed 50 more warnings in the last minute",
        "refused: y",
    ]
