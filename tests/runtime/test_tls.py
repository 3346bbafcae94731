"""What went wrong with TLS, in words that say what to do."""

from __future__ import annotations

import random
import ssl
from pathlib import Path
from typing import Any

import pytest

from halfmoon.errors import SettingError
from halfmoon.runtime.tls import HUNG_UP, ClientTls, _load_pair, client_names, client_reason, expires_ms, server_reason
from tests.authority import Authority


def failure(reason: str, kind: type[ssl.SSLError] = ssl.SSLError) -> ssl.SSLError:
    exc = kind(1, f"[SSL: {reason}] {reason.lower()}")
    exc.reason = reason
    return exc


def test_the_password_of_a_key_is_not_shown() -> None:
    asked = ClientTls(cert="me.pem", key_password="a password")
    assert "a password" not in f"{asked} {asked!r}"
    assert "me.pem" in repr(asked)


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (failure("WRONG_VERSION_NUMBER"), "TLS: what answers there speaks no TLS"),
        (failure("UNEXPECTED_EOF_WHILE_READING"), HUNG_UP),
        (failure("", ssl.SSLEOFError), HUNG_UP),
        (failure("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "TLS: it wants a client's certificate (tls_cert, tls_key)"),
        (failure("TLSV1_ALERT_UNKNOWN_CA"), "TLS: it does not know who signed our certificate"),
        (failure("SOMETHING_NEW"), "TLS: something new"),
        (ConnectionResetError("reset"), None),
        ("closed by the peer", None),
    ],
)
def test_a_client_is_told_what_to_do(exc: object, reason: str | None) -> None:
    assert client_reason(exc) == reason


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (failure("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "the client shows no certificate"),
        (failure("TLSV1_ALERT_UNKNOWN_CA"), "the client refuses: tlsv1 alert unknown ca (it may not trust our certificate"),
        (failure("NO_SHARED_CIPHER"), "no shared cipher"),
    ],
)
def test_the_log_of_a_server_says_whose_fault_it_seems(exc: ssl.SSLError, reason: str) -> None:
    assert server_reason(exc).startswith(reason)


class Shown:
    """A connection whose other side showed a certificate with these names."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._names = names

    def getpeercert(self) -> Any:
        return {"subject": ((("commonName", "me"),), (("organizationName", "ours"),)), "subjectAltName": self._names}


def test_names_of_a_client_are_bounded_in_number_and_length() -> None:
    many: Any = Shown(("DNS", "x" * 1025), ("DNS", "y" * 1024), *[("URI", f"spiffe://{number}") for number in range(500)])
    names = client_names(many)

    assert len(names) == 100
    assert names[:3] == ("me", "y" * 1024, "spiffe://0")


def test_addresses_and_other_kinds_of_names_stand_for_nobody() -> None:
    shown: Any = Shown(("IP Address", "10.0.0.1"), ("DirName", "me"), ("Registered ID", "1.2.3"), ("email", "me@example"))

    assert client_names(shown) == ("me", "me@example")


def test_files_that_are_gone_before_it_is_said_what_they_lack_are_refused_like_any_other(tmp_path: Path) -> None:
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    for file in (cert, key):
        file.write_text("half a file")

    class Replaced(ssl.SSLContext):
        def load_cert_chain(self, *files: Any, **options: Any) -> None:
            try:
                super().load_cert_chain(*files, **options)
            finally:
                key.unlink()

    with pytest.raises(SettingError, match=r"server\.key: cannot be read: No such file"):
        _load_pair(Replaced(ssl.PROTOCOL_TLS_SERVER), str(cert), str(key), "")


@pytest.mark.parametrize("days", [30, -3, 40 * 365])  # from 2050 on a date has four digits of the year
def test_the_end_of_a_certificate_is_what_tls_itself_reads(tmp_path: Path, days: int) -> None:
    pair = Authority(tmp_path).pair("server", days=days)
    shown = ssl._ssl._test_decode_cert(pair.cert)  # type: ignore[attr-defined]

    assert expires_ms(pair.cert) == ssl.cert_time_to_seconds(shown["notAfter"]) * 1000


def test_a_damaged_or_missing_certificate_has_no_end_and_raises_nothing(tmp_path: Path) -> None:
    whole = ssl.PEM_cert_to_DER_cert(Path(Authority(tmp_path).pair("server").cert).read_text().split("\n\n")[0])
    path, chance = tmp_path / "damaged.pem", random.Random(7)
    for _ in range(300):
        damaged = bytearray(whole[: chance.randrange(len(whole) + 1)])
        for _ in range(chance.randrange(4) if damaged else 0):
            damaged[chance.randrange(min(len(damaged), 200))] = chance.randrange(256)
        path.write_text(ssl.DER_cert_to_PEM_cert(bytes(damaged)))
        assert expires_ms(str(path)) is None or len(damaged) > 100

    assert expires_ms(str(tmp_path / "missing.pem")) is None
    path.write_text("no certificate")
    assert expires_ms(str(path)) is None


def test_a_client_verifies_by_default_and_speaks_no_tls_before_1_2() -> None:
    context = ClientTls().context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
