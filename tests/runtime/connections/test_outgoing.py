"""A core is kept connected to the address that it names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halfmoon.effects import Close, Write
from halfmoon.instant import Instant
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.connections.outgoing import Outgoing
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.server import Server
from halfmoon.runtime.tls import ClientTls
from halfmoon.settings.tls import TlsMode, TlsSettings
from tests.authority import Authority
from tests.runtime.server.echo import Echo, serving
from tests.waiting import soon


class Caller(Echo):
    """Says hello when it is connected."""

    def __init__(self, master: str | None) -> None:
        super().__init__()
        self.master, self.is_connected = master, False
        self.refusals: list[tuple[str, str]] = []
        self.answer = lambda peer, data: []

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        super().connected(peer, remote, now)
        self.is_connected = True
        self.left.append(Write(peer, [b"hello"]))

    def lost(self, peer: int, now: Instant) -> None:
        super().lost(peer, now)
        self.is_connected = False

    def refused(self, address: str, reason: str) -> None:
        self.refusals.append((address, reason))


def heard(caller: Caller) -> list[bytes]:
    """Return what was said to a caller, turn by turn."""
    return [data for turn in caller.commits for _, data in turn]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outgoing, "pause_s", 0.01)


async def test_it_connects_speaks_and_connects_again_when_it_is_lost() -> None:
    async with serving(Echo()) as (running, (host, port)):
        caller = Caller(f"{host}:{port}")
        outgoing = Outgoing(Server(caller, [], Clock()), caller)
        assert await outgoing.start() == []
        await soon(lambda: heard(caller) == [b"hello"])
        for connection in list(running._connections.values()):
            connection.transport.abort()
        await soon(lambda: heard(caller) == [b"hello", b"hello"])
        await outgoing.stop()
        await soon(lambda: running.connection_count == 0)


async def test_it_waits_until_an_address_is_known_and_tells_why_there_is_no_connection() -> None:
    caller = Caller(None)
    outgoing = Outgoing(Server(caller, [], Clock()), caller)
    await outgoing.start()
    await asyncio.sleep(0.03)
    assert not caller.refusals
    async with serving(Echo()) as (_, (host, port)):
        pass
    caller.master = f"{host}:{port}"
    await soon(lambda: len(caller.refusals) > 1)
    assert caller.refusals[0][0] == f"{host}:{port}"
    assert "refused" in caller.refusals[0][1].lower()
    await outgoing.abort()


async def test_an_address_that_makes_no_sense_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    caller = Caller("127.0.0.1:0")
    outgoing = Outgoing(Server(caller, [], Clock()), caller)
    await outgoing.start()
    await soon(lambda: len(caller.refusals) > 1 or "connecting failed" in caplog.text)
    await outgoing.stop()


# ---------------------------------------------------------------- TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def certificates(authority: Authority, *hosts: str, mode: TlsMode = TlsMode.ENFORCING) -> Certificates:
    pair = authority.pair("server", *hosts)
    return Certificates(TlsSettings(server_mode=mode, server_cert=pair.cert, server_key=pair.key))


@pytest.mark.parametrize("mode", [TlsMode.ENFORCING, TlsMode.PERMISSIVE])
async def test_it_speaks_tls_in_both_directions_and_again_after_an_end(authority: Authority, mode: TlsMode) -> None:
    echo, large = Echo(), bytes(range(256)) * 12_000
    async with serving(echo, certificates=certificates(authority, mode=mode)) as (running, (host, port)):
        caller = Caller(f"{host}:{port}")
        outgoing = Outgoing(Server(caller, [], Clock()), caller, OutgoingTls(ClientTls(ca=authority.ca)))
        await outgoing.start()
        await soon(lambda: b"".join(heard(caller)) == b"hello")
        assert all(connection._encryption is not None for connection in running._connections.values())
        (peer,) = {told[1] for told in caller.told if told[0] == "connected"}
        caller.left.append(Write(peer, [large, large]))
        outgoing._server.wake()
        await soon(lambda: b"".join(heard(caller)) == b"hello" + large + large)
        for connection in list(running._connections.values()):
            connection.close("the test ends it")
        await soon(lambda: b"".join(heard(caller)) == b"hello" + large + large + b"hello")
        await outgoing.stop()
        await soon(lambda: running.connection_count == 0)


@pytest.mark.parametrize(
    ("host", "trusted", "reason"),
    [
        ("127.0.0.1", False, "nobody trusted signed"),
        ("localhost", True, "another name"),
        (None, True, "hung up during the handshake"),
    ],
)
async def test_a_master_that_cannot_prove_who_it_is_is_told_nothing(
    authority: Authority, tmp_path: Path, host: str | None, trusted: bool, reason: str
) -> None:
    echo = Echo()
    offered = None if host is None else certificates(authority, host)
    trust = authority if trusted else Authority(tmp_path / "others")
    async with serving(echo, certificates=offered) as (_, (address, port)):
        if host is None:
            echo.answer = lambda peer, data: [Close(peer, "no frame")]
        caller = Caller(f"{address}:{port}")
        outgoing = Outgoing(Server(caller, [], Clock()), caller, OutgoingTls(ClientTls(ca=trust.ca)))
        await outgoing.start()
        await soon(lambda: len(caller.refusals) > 1)
        assert reason in caller.refusals[0][1]
        assert not any(told[0] == "connected" for told in caller.told)
        assert not any(b"hello" in data for turn in echo.commits for _, data in turn)
        await outgoing.stop()
