"""Which certificates load, which are refused with what reason, and what happens when files change."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from halfmoon.errors import SettingError
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.settings.tls import ClientCertificates, TlsMode, TlsSettings
from tests.authority import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def named(certificates: Certificates, authority: Authority) -> set[str]:
    """The names in the certificate that the next connection is shown."""
    assert certificates.context is not None
    ends = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2)]
    server = certificates.context.wrap_bio(*ends[0], server_side=True)
    trusting = authority.trusting()
    trusting.check_hostname = False
    client = trusting.wrap_bio(*ends[1])
    for _ in range(4):
        for tls, mine, other in ((client, ends[1], ends[0]), (server, ends[0], ends[1])):
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            other[0].write(mine[1].read())
    found = client.getpeercert()
    assert found is not None
    return {name for _, name in found["subjectAltName"]}  # type: ignore[misc]


def put(source: Pair, target: Pair) -> None:
    shutil.copy(source.cert, target.cert)
    shutil.copy(source.key, target.key)


def test_without_a_certificate_tls_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="halfmoon.serve")
    off = Certificates(TlsSettings())
    assert (off.context, off.expires_ms) == (None, None)
    assert "TLS is off" in caplog.text


def test_a_disabled_mode_needs_no_files() -> None:
    assert Certificates(TlsSettings(server_mode=TlsMode.DISABLED, server_cert="/nowhere")).context is None


def test_one_file_may_hold_certificate_and_key(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("server")
    joined = tmp_path / "joined.pem"
    joined.touch(0o600)
    joined.write_bytes(Path(pair.cert).read_bytes() + Path(pair.key).read_bytes())
    assert named(Certificates(TlsSettings(server_cert=str(joined))), authority) == {"127.0.0.1", "localhost"}


def test_an_encrypted_key_needs_its_password_which_is_never_shown(authority: Authority) -> None:
    pair = authority.pair("server", password="Geheim!")
    settings = TlsSettings(server_cert=pair.cert, server_key=pair.key, server_key_password="Geheim!")
    assert named(Certificates(settings), authority)
    assert "Geheim!" not in repr(settings)
    for wrong in ("", "Falsch!"):
        with pytest.raises(SettingError, match="password") as refused:
            Certificates(TlsSettings(server_cert=pair.cert, server_key=pair.key, server_key_password=wrong))
        assert "Falsch!" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"server_mode": TlsMode.ENFORCING}, "enforcing needs a certificate"),
        (
            {"server_client_auth": ClientCertificates.REQUIRE, "server_trust": "ca.pem"},
            "TLS is off without one of the server's own",
        ),
        ({"server_cert": "/nowhere.pem"}, "/nowhere.pem: cannot be read: No such file"),
        ({"test_mode": True}, "tls.test.mode.enable"),
        ({"config_file": "/nowhere.properties"}, "/nowhere.properties: cannot be read"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        Certificates(TlsSettings(**settings))


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    one, other = authority.pair("one"), authority.pair("other")
    with pytest.raises(SettingError, match="does not belong"):
        Certificates(TlsSettings(server_cert=one.cert, server_key=other.key))


def test_a_key_that_others_may_read_is_refused_until_it_is_closed(authority: Authority) -> None:
    pair = authority.pair("server")
    settings = TlsSettings(server_cert=pair.cert, server_key=pair.key)
    Path(pair.key).chmod(0o640)
    with pytest.raises(SettingError, match=r"server\.key: other users may read or change the private key in it"):
        Certificates(settings)
    Path(pair.key).chmod(0o600)
    assert named(Certificates(settings), authority)


def test_what_is_no_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "noise.pem").write_bytes(b"\x00noise")
    with pytest.raises(SettingError, match="no PEM"):
        Certificates(TlsSettings(server_cert=str(tmp_path / "noise.pem")))


def test_asking_clients_for_certificates_needs_who_signs_them_and_that_they_are_verified(authority: Authority) -> None:
    pair = authority.pair("server")
    asking = {"server_cert": pair.cert, "server_key": pair.key, "server_client_auth": ClientCertificates.REQUIRE}
    with pytest.raises(SettingError, match="trustCertPath"):
        Certificates(TlsSettings(**asking))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="proves nothing"):
        Certificates(TlsSettings(**asking, server_trust=authority.ca, server_auth_client=False))  # type: ignore[arg-type]
    context = Certificates(TlsSettings(**asking, server_trust=authority.ca)).context  # type: ignore[arg-type]
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_file_of_rocketmqs_keys_is_read_and_wins(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("server", "file.example")
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.test.mode.enable=false\ntls.server.need.client.auth=require\ntls.server.keyPath={pair.key}\n"
        f"tls.server.certPath={pair.cert}\ntls.server.authClient=true\ntls.server.trustCertPath={authority.ca}\n"
        "tls.client.authServer=false\n"
    )
    found = Certificates(TlsSettings(config_file=str(file), server_cert="/elsewhere"))
    assert found.settings.server_client_auth is ClientCertificates.REQUIRE
    assert (found.settings.server_cert, found.settings.client_auth_server) == (pair.cert, False)


def test_a_changed_pair_is_shown_from_the_next_look_on(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="halfmoon.serve")
    pair = authority.pair("server", "old.example")
    certificates = Certificates(TlsSettings(server_cert=pair.cert, server_key=pair.key))
    certificates.refresh()
    assert not caplog.records
    before_ms = certificates.expires_ms
    put(authority.pair("new", "new.example", days=60), pair)
    certificates.refresh()
    assert named(certificates, authority) == {"new.example"}
    assert certificates.expires_ms is not None
    assert before_ms is not None
    assert 29 <= (certificates.expires_ms - before_ms) / 86_400_000 <= 31
    assert "loaded again" in caplog.text


def test_a_bad_new_pair_is_refused_once_and_the_old_one_stays_until_a_good_one_comes(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair, new = authority.pair("server", "old.example"), authority.pair("new", "new.example")
    certificates = Certificates(TlsSettings(server_cert=pair.cert, server_key=pair.key))
    shutil.copy(new.cert, pair.cert)  # its key comes later
    certificates.refresh()
    certificates.refresh()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "does not belong" in caplog.text
    assert named(certificates, authority) == {"old.example"}
    Path(pair.cert).unlink()
    certificates.refresh()
    assert named(certificates, authority) == {"old.example"}
    put(new, pair)
    certificates.refresh()
    assert named(certificates, authority) == {"new.example"}


def test_a_changed_file_of_keys_may_name_another_pair(authority: Authority, tmp_path: Path) -> None:
    old, new = authority.pair("old", "old.example"), authority.pair("new", "new.example")
    file = tmp_path / "tls.properties"
    file.write_text(f"tls.server.keyPath={old.key}\ntls.server.certPath={old.cert}\n")
    certificates = Certificates(TlsSettings(config_file=str(file)))
    file.write_text(f"tls.server.keyPath={new.key}\ntls.server.certPath={new.cert}\n# changed\n")
    certificates.refresh()
    assert named(certificates, authority) == {"new.example"}
    put(authority.pair("newer", "newer.example"), new)
    certificates.refresh()
    assert named(certificates, authority) == {"newer.example"}


@pytest.mark.parametrize("mode", ["enforcing", "disabled"])
def test_a_changed_mode_waits_for_the_next_start_and_is_logged_while_the_certificate_is_new(
    mode: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = authority.pair("old", "old.example"), authority.pair("new", "new.example")
    file = tmp_path / "tls.properties"
    file.write_text(f"tls.server.keyPath={old.key}\ntls.server.certPath={old.cert}\n")
    certificates = Certificates(TlsSettings(config_file=str(file)))
    file.write_text(f"tls.server.keyPath={new.key}\ntls.server.certPath={new.cert}\ntls.server.mode={mode}\n")
    certificates.refresh()
    certificates.refresh()
    assert (certificates.mode, certificates.settings.server_mode) == (TlsMode.PERMISSIVE, TlsMode.PERMISSIVE)
    assert named(certificates, authority) == {"new.example"}
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"TLS: tls.server.mode={mode} in {file} takes effect at the next start; until then it is permissive"
    ]
