"""TLS without sockets: two ends that hand each other bytes."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from halfmoon.runtime.server.encryption import Encryption
from halfmoon.runtime.tls import server_context
from halfmoon.settings.tls import ClientCertificates, TlsSettings
from tests.authority import DNS, URI, Authority


class Client:
    """The other end."""

    def __init__(self, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost", session=session)

    def step(self, data: bytes) -> bytes:
        self.incoming.write(data)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()

    def read(self, data: bytes) -> bytes:
        self.incoming.write(data)
        return self.tls.read(65536)

    def sealed(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


@pytest.fixture
def ends(tmp_path: Path) -> tuple[Encryption, Client]:
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    return Encryption(server_context(TlsSettings(server_cert=pair.cert, server_key=pair.key))), Client(authority.trusting())


def shake_hands(server: Encryption, client: Client) -> None:
    answer = b""
    while not server.is_open:
        assert server.received(client.step(answer)) == b""
        answer = server.outgoing.read()
    client.step(answer)


def test_what_comes_in_any_pieces_is_read_once_its_records_are_whole(ends: tuple[Encryption, Client]) -> None:
    server, client = ends
    hello = client.step(b"")
    for byte in hello:
        assert server.received(bytes([byte])) == b""
        assert not server.is_open
    shake_hands_rest = client.step(server.outgoing.read())
    assert server.received(shake_hands_rest + client.sealed(b"one")) == b"one"
    record = client.sealed(b"two")
    assert [server.received(record[:7]), server.received(record[7:])] == [b"", b"two"]
    assert server.received(client.sealed(b"three") + client.sealed(b"four")) == b"threefour"


def test_what_is_longer_than_a_record_arrives_whole(ends: tuple[Encryption, Client]) -> None:
    server, client = ends
    shake_hands(server, client)
    body = bytes(range(256)) * 1000
    client.incoming.write(server.sealed(body))
    assert b"".join(iter(lambda: client.tls.read(65536) if client.incoming.pending or client.tls.pending() else b"", b"")) == body


def test_the_end_of_either_side_is_said(ends: tuple[Encryption, Client]) -> None:
    server, client = ends
    shake_hands(server, client)
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    assert server.received(client.outgoing.read()) == b""
    assert server.has_ended
    client.incoming.write(server.ending())
    client.tls.unwrap()


def test_nothing_is_sealed_before_the_handshake_is_over(ends: tuple[Encryption, Client]) -> None:
    server, _ = ends
    with pytest.raises(ssl.SSLError):
        server.sealed(b"early")


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(100), b"\x16\x03\x01\xff\xff" + bytes(5)])
def test_what_is_no_tls_is_refused(ends: tuple[Encryption, Client], noise: bytes) -> None:
    with pytest.raises(ssl.SSLError):
        ends[0].received(noise)


def test_a_record_that_was_changed_is_refused(ends: tuple[Encryption, Client]) -> None:
    server, client = ends
    shake_hands(server, client)
    record = bytearray(client.sealed(b"pay 10"))
    record[-1] ^= 1
    with pytest.raises(ssl.SSLError):
        server.received(bytes(record))


def asking(authority: Authority, auth: ClientCertificates = ClientCertificates.OPTIONAL) -> ssl.SSLContext:
    """The context of a server that asks clients for certificates."""
    pair = authority.pair("server")
    trusted = authority.ca if auth is not ClientCertificates.NONE else ""
    return server_context(
        TlsSettings(server_cert=pair.cert, server_key=pair.key, server_client_auth=auth, server_trust=trusted)
    )  # fmt: skip


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_names_of_a_verified_certificate_are_known_with_the_handshake_and_no_session_is_resumed_for_ever(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    authority = Authority(tmp_path)
    context, theirs = asking(authority), authority.trusting(authority.pair("client", "orders", "ops@mq.example"))
    theirs.maximum_version = version
    session = None
    for _ in range(2):
        server, client = Encryption(context), Client(theirs, session)
        assert server.names == ()
        shake_hands(server, client)
        assert set(server.names) == {"orders", "ops@mq.example"}
        client.read(server.sealed(b"hello"))
        session = client.tls.session
        server.ending()  # of a connection that breaks off no session is kept
    assert client.tls.session_reused is (version is ssl.TLSVersion.TLSv1_2)  # by its id, two hours at most
    assert session is None or not session.has_ticket


def test_names_are_taken_as_they_are_from_the_subject_and_what_stands_for_it_and_never_from_the_issuer(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair_of_bytes(
        "c", "Orders", (DNS, b"a.example"), (URI, b"spiffe://b"), (DNS, b"op\0.example"), (DNS, b"Orders")
    )
    server, client = Encryption(asking(authority)), Client(authority.trusting(pair))
    shake_hands(server, client)

    assert server.names == ("Orders", "a.example", "spiffe://b", "op\0.example")


@pytest.mark.parametrize(
    ("auth", "shows"), [(ClientCertificates.OPTIONAL, False), (ClientCertificates.NONE, True), (ClientCertificates.NONE, False)]
)
def test_who_shows_no_certificate_or_one_that_nobody_asked_for_has_no_name(
    tmp_path: Path, auth: ClientCertificates, *, shows: bool
) -> None:
    authority = Authority(tmp_path)
    server, client = (
        Encryption(asking(authority, auth)),
        Client(authority.trusting(authority.pair("c", "orders") if shows else None)),
    )
    shake_hands(server, client)

    assert server.names == ()


def test_a_certificate_of_a_stranger_with_the_right_name_ends_the_handshake_and_gives_no_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    theirs = authority.trusting(Authority(tmp_path / "other").pair("client", "orders"))
    server, client = Encryption(asking(authority)), Client(theirs)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client)
    assert (server.names, server.is_open) == ((), False)


def test_tls_1_1_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    context = server_context(TlsSettings(server_cert=pair.cert, server_key=pair.key))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
