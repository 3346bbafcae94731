"""TLS and plain text on one port, over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import uvloop

from halfmoon.effects import Close, Write
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.settings.networks import Networks
from halfmoon.settings.tls import ClientCertificates, TlsMode, TlsSettings
from tests.authority import DNS, Authority, Pair
from tests.runtime.server.echo import Echo, serving
from tests.waiting import soon

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


def speaking(pair: Pair, **settings: Any) -> Certificates:
    return Certificates(TlsSettings(server_cert=pair.cert, server_key=pair.key, **settings))


async def ended(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection, however it comes."""
    async with asyncio.timeout(60):
        try:
            return await reader.read(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True


async def test_tls_and_plain_text_are_spoken_on_one_port(authority: Authority, pair: Pair) -> None:
    core = Echo()
    async with serving(core, certificates=speaking(pair)) as (_, (host, port)):
        plain = await asyncio.open_connection(host, port)
        sealed = await asyncio.open_connection(host, port, ssl=authority.trusting())
        for reader, writer in (plain, sealed, plain, sealed):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
        tls = sealed[1].get_extra_info("ssl_object")
        assert tls.version() == "TLSv1.3"
        for _, writer in (plain, sealed):
            writer.close()
        await soon(lambda: {("lost", 1), ("lost", 2)} <= set(core.told))


async def test_java_8_speaks_tls_1_2(authority: Authority, pair: Pair) -> None:
    old = authority.trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(Echo(), certificates=speaking(pair)) as (_, (host, port)):
        reader, writer = await asyncio.open_connection(host, port, ssl=old)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_large_messages_arrive_whole_both_ways(authority: Authority, pair: Pair) -> None:
    core, body = Echo(), os.urandom(3_000_000)
    got = bytearray()

    def answer(peer: int, data: bytes) -> list[Any]:
        got.extend(data)
        return [Write(peer, [b"head", memoryview(bytes(got)), b"tail"])] if len(got) == len(body) else []

    core.answer = answer
    async with serving(core, certificates=speaking(pair)) as (_, (host, port)):
        reader, writer = await asyncio.open_connection(host, port, ssl=authority.trusting())
        writer.write(body)
        assert await reader.readexactly(len(body) + 8) == b"head" + body + b"tail"
        writer.close()


async def test_enforcing_takes_no_plain_text_and_says_so_once(
    authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    core = Echo()
    async with serving(core, certificates=speaking(pair, server_mode=TlsMode.ENFORCING)) as (_, (host, port)):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert await ended(reader)
        mine = "{}:{}".format(*writer.get_extra_info("sockname"))
        writer.close()
        reader, writer = await asyncio.open_connection(host, port, ssl=authority.trusting())
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
    assert [commit for commit in core.commits if b"GET" in commit[0][1]] == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"peer={mine}" in line
    assert "HTTP/1: 'GET /metrics HTTP/1.1', where only TLS is spoken" in line


@pytest.mark.parametrize("begun", [1, 100])
async def test_who_begins_a_handshake_and_waits_is_cut(
    authority: Authority, pair: Pair, begun: int, caplog: pytest.LogCaptureFixture
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    core = Echo()
    async with serving(core, certificates=speaking(pair)) as (running, (host, port)):
        assert running.opening is not None
        running.opening.handshake_s = 0.2
        silent = await asyncio.open_connection(host, port)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(outgoing.read()[:begun])
        assert await ended(reader)
        writer.close()
        silent[1].write(b"late")  # who said nothing was not cut: it may be plain text
        assert await silent[0].readexactly(4) == b"late"
        silent[1].close()
        assert running.opening.count == 0
    assert "no whole handshake" in caplog.text
    assert core.commits == [[(1, b"late")]]


async def test_there_is_a_bound_on_handshakes(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Echo(), certificates=speaking(pair)) as (running, (host, port)):
        assert running.opening is not None
        running.opening.handshakes_max = 2
        connections = []
        for count in range(1, 4):
            connections.append(await asyncio.open_connection(host, port))
            connections[-1][1].write(b"\x16")
            await soon(lambda: running.opening and running.opening.count == min(count, 2))  # noqa: B023
        assert await ended(connections[0][0])
        assert "this is the oldest" in caplog.text
        for _, writer in connections:
            writer.close()


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    authority: Authority, pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine, foreign = authority.pair("client"), Authority(tmp_path / "other").pair("foreign")
    core = Echo()
    required = speaking(pair, server_client_auth=ClientCertificates.REQUIRE, server_trust=authority.ca)
    async with serving(core, certificates=required) as (_, (host, port)):
        for shown in (None, foreign):
            with contextlib.suppress(ssl.SSLError, ConnectionError):  # the alert may come late, or be overtaken by the end
                reader, writer = await asyncio.open_connection(host, port, ssl=authority.trusting(shown))
                writer.write(b"let me in")
                assert await reader.read(1) == b""
        reader, writer = await asyncio.open_connection(host, port, ssl=authority.trusting(mine))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
    assert [data for commit in core.commits for _, data in commit] == [b"hello"]
    assert [told[2] for told in core.told if told[0] == "certified"] == [("localhost",)]
    assert "the client shows no certificate" in caplog.text
    assert "the client's certificate is refused" in caplog.text


async def test_the_core_hears_whose_certificate_it_is_before_the_first_byte_and_of_plain_text_nothing(
    authority: Authority, pair: Pair
) -> None:
    core = Telling()
    optional = speaking(pair, server_client_auth=ClientCertificates.OPTIONAL, server_trust=authority.ca)
    async with serving(core, certificates=optional) as (_, (host, port)):
        for context in (authority.trusting(authority.pair("client", "orders")), authority.trusting(), None):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname="127.0.0.1" if context else None
            )
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
    assert [told for told in core.told if told[0] in ("certified", "fed")] == [
        ("certified", 1, ("orders",)), ("fed", 1), ("fed", 2), ("fed", 3),
    ]  # fmt: skip


class Telling(Echo):
    """Also tells of bytes."""

    def feed(self, peer: int, data: bytes) -> None:
        self.told.append(("fed", peer))
        super().feed(peer, data)


async def test_a_certificate_with_a_name_that_is_no_text_is_refused(
    authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    optional = speaking(pair, server_client_auth=ClientCertificates.OPTIONAL, server_trust=authority.ca)
    core, damaged = Echo(), authority.pair_of_bytes("client", "orders", (DNS, b"\xff\xfe"))
    async with serving(core, certificates=optional) as (_, (host, port)):
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            reader, writer = await asyncio.open_connection(host, port, ssl=authority.trusting(damaged))
            writer.write(b"let me in")
            assert await reader.read(1) == b""
        await soon(lambda: "a name that is no text" in caplog.text)
    assert core.commits == []


async def test_what_the_client_finds_wrong_with_the_certificate_is_logged(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Echo(), certificates=speaking(authority.pair("old", days=-1))) as (_, (host, port)):
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await asyncio.open_connection(host, port, ssl=authority.trusting())
        await soon(lambda: "hung up during the handshake" in caplog.text)

        def connect() -> None:
            context = Authority(tmp_path / "other").trusting()
            with socket.create_connection((host, port)) as sock, context.wrap_socket(sock, server_hostname="localhost"):
                pass

        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.get_running_loop().run_in_executor(None, connect)
        await soon(lambda: "the client refuses: tlsv1 alert unknown ca" in caplog.text)


async def test_a_new_certificate_is_shown_without_a_restart_and_open_connections_go_on(
    authority: Authority,
) -> None:
    pair, new = authority.pair("server", "localhost"), authority.pair("new", "localhost", "new.example")

    async def names(port: int) -> tuple[Any, Any, set[str]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.trusting(), server_hostname="localhost")
        found = writer.get_extra_info("peercert")["subjectAltName"]
        return reader, writer, {name for _, name in found}

    async with serving(Echo(), reload_s=0.02, certificates=speaking(pair)) as (_, (_, port)):
        reader, writer, shown = await names(port)
        assert shown == {"localhost"}
        shutil.copy(new.cert, pair.cert)
        shutil.copy(new.key, pair.key)
        async with asyncio.timeout(60):
            while shown == {"localhost"}:
                _, other, shown = await names(port)
                other.close()
        assert shown == {"localhost", "new.example"}
        writer.write(b"old")
        assert await reader.readexactly(3) == b"old"
        writer.close()


async def test_files_are_looked_at_again_after_a_look_that_failed_in_a_way_nobody_expected(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Certificates):
        looks = 0

        def refresh(self) -> None:
            self.looks += 1
            raise MemoryError("no room")

    certificates = Failing(TlsSettings(server_cert=pair.cert, server_key=pair.key))
    async with serving(Echo(), reload_s=0.02, certificates=certificates):
        await soon(lambda: certificates.looks > 1)
    assert "looking at the files of certificates failed" in caplog.text


async def test_who_does_not_read_is_cut_with_tls_too(authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    core = Echo()
    core.answer = lambda peer, data: [Write(peer, [bytes(1_000_000)])] * 8
    async with serving(core, certificates=speaking(pair), write_max_bytes=2_000_000) as (_, address):
        loop = asyncio.get_running_loop()
        sock = socket.create_connection(address)
        tls = await loop.run_in_executor(None, lambda: authority.trusting().wrap_socket(sock, server_hostname="localhost"))
        tls.send(b"?")
        await soon(lambda: ("lost", 1) in core.told)
        tls.close()
    assert "it does not read" in caplog.text


async def test_a_slow_reader_gets_everything_in_order(authority: Authority, pair: Pair) -> None:
    core = Echo()
    answers = [os.urandom(50_000) for _ in range(60)]
    core.answer = lambda peer, data: [Write(peer, [answer[:9], answer[9:]]) for answer in answers]
    async with serving(core, certificates=speaking(pair)) as (_, (host, port)):
        reader, writer = await asyncio.open_connection(host, port, ssl=authority.trusting(), limit=4096)
        writer.write(b"?")
        assert await reader.readexactly(3_000_000) == b"".join(answers)
        writer.close()


async def test_what_was_answered_before_a_close_arrives_and_then_the_end_is_said(authority: Authority, pair: Pair) -> None:
    core = Echo()
    core.answer = lambda peer, data: [Write(peer, [data * 200_000]), Close(peer, "bad frame")]
    async with serving(core, certificates=speaking(pair)) as (_, (host, port)):
        reader, writer = await asyncio.open_connection(host, port, ssl=authority.trusting())
        writer.write(b"x")
        assert await reader.read(-1) == b"x" * 200_000  # an end that is not said would be an error of TLS
        writer.close()


async def test_who_says_that_it_sends_no_more_gets_its_answer(authority: Authority, pair: Pair) -> None:
    core = Echo()
    async with serving(core, certificates=speaking(pair)) as (_, address):
        loop = asyncio.get_running_loop()
        sock = socket.create_connection(address)

        def ask() -> bytes:
            tls = authority.trusting().wrap_socket(sock, server_hostname="localhost", suppress_ragged_eofs=False)
            tls.sendall(b"last words")
            got = tls.recv(100)
            tls.unwrap().close()
            return got

        assert await loop.run_in_executor(None, ask) == b"last words"
        await soon(lambda: ("lost", 1) in core.told)


async def test_a_stop_ends_handshakes_and_encrypted_connections(authority: Authority, pair: Pair) -> None:
    async with serving(Echo(), certificates=speaking(pair)) as (_, (host, port)):
        half = await asyncio.open_connection(host, port)
        half[1].write(b"\x16")
        whole = await asyncio.open_connection(host, port, ssl=authority.trusting())
    for reader, writer in (half, whole):
        assert await ended(reader)
        writer.close()


# ---------------------------------------------------------------- the PROXY protocol

LINE = b"PROXY TCP4 203.0.113.7 127.0.0.1 4711 10911\r\n"


def remotes(core: Echo) -> list[str]:
    return [told[2] for told in core.told if told[0] == "connected"]


async def test_a_trusted_proxy_says_for_whom_it_connects(authority: Authority, pair: Pair) -> None:
    core = Echo()
    async with serving(core, proxies=Networks("127.0.0.0/8"), certificates=speaking(pair)) as (_, (host, port)):
        reader, writer = await asyncio.open_connection(host, port)
        for piece in (LINE[:1], LINE[1:20], LINE[20:] + b"hel", b"lo"):
            writer.write(piece)
            await asyncio.sleep(0.01)
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(LINE.replace(b"4711", b"4712"))
        await writer.start_tls(authority.trusting(), server_hostname="localhost")
        writer.write(b"sealed")
        assert await reader.readexactly(6) == b"sealed"
        writer.close()
        await soon(lambda: {("lost", 1), ("lost", 2)} <= set(core.told))
    assert remotes(core) == ["203.0.113.7:4711", "203.0.113.7:4712"]


async def test_a_client_beside_the_proxy_connects_as_itself() -> None:
    core = Echo()
    async with serving(core, proxies=Networks("127.0.0.1")) as (running, (host, port)):
        assert running.opening is not None
        running.opening.handshake_s = 0.1
        talking, silent = [await asyncio.open_connection(host, port) for _ in range(2)]
        talking[1].write(b"hello")
        assert await talking[0].readexactly(5) == b"hello"
        await soon(lambda: len(remotes(core)) == 2)  # who says nothing is waited for no longer than a preamble may take
        silent[1].write(b"late")
        assert await silent[0].readexactly(4) == b"late"
        mine = ["{}:{}".format(*writer.get_extra_info("sockname")) for _, writer in (talking, silent)]
        for _, writer in (talking, silent):
            writer.close()
        assert running.opening.count == 0
    assert remotes(core) == mine


@pytest.mark.parametrize(("proxies", "sent", "taken"), [
    ("127.0.0.1", b"PROXY UNKNOWN\r\nhello", b"hello"),
    ("127.0.0.1", b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00hello", b"hello"),
    ("192.0.2.0/24", LINE, LINE),  # bytes like any others
], ids=["UNKNOWN", "LOCAL", "no proxy"])  # fmt: skip
async def test_who_names_nobody_or_may_not_is_known_by_its_own_address(proxies: str, sent: bytes, taken: bytes) -> None:
    core = Echo()
    async with serving(core, proxies=Networks(proxies)) as (_, (host, port)):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        assert await reader.readexactly(len(taken)) == taken
        mine = "{}:{}".format(*writer.get_extra_info("sockname"))
        writer.close()
    assert remotes(core) == [mine]


@pytest.mark.parametrize(
    ("sent", "reason"), [(b"PROXY TCP4 nonsense\r\n", "PROXY protocol 1"), (LINE[:9], "no whole preamble within")]
)
async def test_a_preamble_that_is_malformed_or_never_ends_is_refused(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    core = Echo()
    async with serving(core, proxies=Networks("127.0.0.1")) as (running, (host, port)):
        assert running.opening is not None
        running.opening.handshake_s = 0.2
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        assert await ended(reader)
        writer.close()
    assert core.told == ["start", "stop"]  # the core heard of nobody
    assert reason in caplog.text


async def test_behind_a_proxy_whom_it_connects_for_is_counted_and_the_proxy_is_not(caplog: pytest.LogCaptureFixture) -> None:
    core = Echo()
    async with serving(core, proxies=Networks("127.0.0.1"), connections_per_address_max=2) as (_, (host, port)):
        links = []
        for source in (b"203.0.113.7", b"203.0.113.8", b"203.0.113.7"):
            links.append(await asyncio.open_connection(host, port))
            links[-1][1].write(b"PROXY TCP4 %s 192.0.2.1 4711 443\r\nhello" % source)
            assert await links[-1][0].readexactly(5) == b"hello"
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"PROXY TCP4 203.0.113.7 192.0.2.1 4712 443\r\nhello")
            assert await ended(reader)
            writer.close()
        links[0][1].close()
        await soon(lambda: ("lost", 1) in core.told)
        links.append(await asyncio.open_connection(host, port))
        links[-1][1].write(b"PROXY TCP4 203.0.113.7 192.0.2.1 4713 443\r\nhello")
        assert await links[-1][0].readexactly(5) == b"hello"
        for _, writer in links:
            writer.close()
    assert [remote.rpartition(":")[0] for remote in remotes(core)] == ["203.0.113.7", "203.0.113.8", "203.0.113.7", "203.0.113.7"]
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "connections are refused: 203.0.113.7 has 2, the bound of one address (connections_per_address_max)"


async def test_an_address_that_has_too_many_is_refused_in_plain_text_and_tls_and_gets_its_places_back(
    authority: Authority, pair: Pair
) -> None:
    core = Echo()
    async with serving(core, certificates=speaking(pair), connections_per_address_max=2) as (running, (host, port)):
        plain = await asyncio.open_connection(host, port)
        sealed = await asyncio.open_connection(host, port, ssl=authority.trusting())
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, port)
            assert await ended(reader)
            writer.close()
            with pytest.raises((ConnectionError, ssl.SSLError, OSError)):
                await asyncio.open_connection(host, port, ssl=authority.trusting())
        for reader, writer in (plain, sealed):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
        await soon(lambda: not running.connection_count)
        again = [await asyncio.open_connection(host, port, ssl=authority.trusting()) for _ in range(2)]
        for _, writer in again:
            writer.close()


async def test_handshakes_by_the_dozen_are_spread_over_turns_and_all_succeed(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Echo()
    async with serving(core, certificates=speaking(pair)) as (running, (host, port)):
        assert running.opening is not None
        running.opening.steps_a_turn = 2
        steps, turns, taken = running.opening._take, [], running.opening._next_turn
        monkeypatch.setattr(running.opening, "_take", lambda *step: (turns.append(1), steps(*step)))
        monkeypatch.setattr(running.opening, "_next_turn", lambda: (turns.append(0), taken()))
        links = await asyncio.gather(*(asyncio.open_connection(host, port, ssl=authority.trusting()) for _ in range(24)))
        for reader, writer in links:
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
    shares = [len(share) for share in "".join(map(str, turns)).split("0")]
    assert sum(shares) >= 48
    assert max(shares) == 2
