"""Apache's Java client over TLS to our servers, and ours over TLS to Apache's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PullConsumer
from halfmoon.errors import NetworkError
from halfmoon.model import ConsumeFrom, Message
from tests.authority import Authority
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaError, JavaPeer
from tests.interop.ours import Serve

Start = Callable[..., Serve]
ACCOUNTS = """
accounts:
- {accessKey: shop-service, secretKey: never-used, certificate: shop.example, topicPerms: [Tls=PUB|SUB], groupPerms: [Tls=PUB|SUB]}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def there_and_back(peer: JavaPeer, server: Serve, topic: str) -> str:
    """What the client receives of what it sent, with tags and in a transaction's place."""
    order: dict[str, Any] = {"topic": topic, "group": topic, "nameserver": server.nameserver}
    peer.call("producer", **order)
    try:
        (sent,) = peer.call("send", body=f"through {topic}", **order)
    finally:
        peer.call("producer.stop", **order)
    assert sent["status"] == "SEND_OK"
    peer.call("push", name="p", **order)
    try:
        (message,) = peer.call("push.wait", name="p", count=1, timeout_ms=20_000, **order)
    finally:
        peer.call("push.stop", name="p", **order)
    return str(message["body"])


@pytest.mark.parametrize("version", ["4.7.1", "4.9.7", "5.3.3"])
def test_a_java_client_that_verifies_and_shows_its_certificate_sends_and_consumes(
    version: str, authority: Authority, serve: Start, tmp_path: Path
) -> None:
    pair, mine = authority.pair("server"), authority.pair("client")
    server = serve(
        **{
            "tls.server.mode": "enforcing", "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key,
            "tls.server.need.client.auth": "require", "tls.server.trustCertPath": authority.ca,
            "tls.client.certPath": mine.cert, "tls.client.keyPath": mine.key,
        }
    )  # fmt: skip
    properties = {
        "tls.enable": "true", "tls.test.mode.enable": "false", "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.ca, "tls.client.certPath": mine.cert, "tls.client.keyPath": mine.key,
    }  # fmt: skip
    peer = JavaPeer(version, tmp_path / "java", **properties)
    try:
        assert there_and_back(peer, server, "Tls") == "through Tls"
    finally:
        peer.stop()


def test_a_java_client_without_an_access_key_is_the_account_of_its_certificate(authority: Authority, tmp_path: Path) -> None:
    pair, mine = authority.pair("server"), authority.pair("shop", "shop.example")
    rules = tmp_path / "data" / "conf" / "plain_acl.yml"
    rules.parent.mkdir(parents=True)
    rules.write_text(ACCOUNTS)
    rules.chmod(0o600)
    settings = {
        "tls.server.mode": "enforcing", "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key,
        "tls.server.need.client.auth": "optional", "tls.server.trustCertPath": authority.ca, "aclEnable": "true",
    }  # fmt: skip
    properties = {
        "tls.enable": "true", "tls.test.mode.enable": "false", "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.ca, "tls.client.certPath": mine.cert, "tls.client.keyPath": mine.key,
    }  # fmt: skip
    server = Serve(tmp_path / "data", settings=settings).start()
    peer = JavaPeer("4.9.7", tmp_path / "java", **properties)
    try:
        assert there_and_back(peer, server, "Tls") == "through Tls"
        with pytest.raises(JavaError, match=r"Send \[3\] times"):
            there_and_back(peer, server, "Other")
        assert "No default permission for topic:Other" in server.data.with_suffix(".log").read_text()
    finally:
        peer.stop()
        server.stop()


def test_a_java_client_in_its_test_mode_and_a_plain_one_share_our_port(authority: Authority, serve: Start, tmp_path: Path) -> None:
    pair = authority.pair("server", "any.example")
    server = serve(**{"tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key})
    for name, properties in (("Secure", {"tls.enable": "true"}), ("Plain", {"tls.enable": "false"})):
        peer = JavaPeer("4.9.7", tmp_path / name, **properties)
        try:
            assert there_and_back(peer, server, name) == f"through {name}"
        finally:
            peer.stop()


def test_a_plain_java_client_is_refused_where_only_tls_is_taken(authority: Authority, serve: Start, tmp_path: Path) -> None:
    pair = authority.pair("server")
    server = serve(**{"tls.server.mode": "enforcing", "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key})
    peer = JavaPeer("4.9.7", tmp_path / "java", **{"tls.enable": "false"})
    try:
        with pytest.raises(JavaError):
            there_and_back(peer, server, "Plain")
    finally:
        peer.stop()
    assert "plain text, where only TLS is spoken" in server.data.with_suffix(".log").read_text()


def test_our_client_speaks_tls_to_apaches_servers(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("apache")
    tls = {
        "tls.server.mode": "enforcing", "tls.test.mode.enable": "false", "tls.server.certPath": pair.cert,
        "tls.server.keyPath": pair.key, "tls.client.authServer": "false",
    }  # fmt: skip
    cluster = Cluster("4.9.7", tmp_path / "apache", tls=tls)
    secure: dict[str, Any] = {"nameserver": cluster.nameserver, "use_tls": True, "tls_ca": authority.ca}
    try:
        cluster.start()
        with Admin(**secure) as admin:
            admin.create_topic("Tls", queue_count=1)
        with Producer(group="P_tls", **secure) as producer:
            producer.send(Message(topic="Tls", body=b"hello"))
        with PullConsumer(group="G_tls", consume_from=ConsumeFrom.FIRST_OFFSET, **secure) as consumer:
            consumer.subscribe("Tls")
            got: list[Any] = []
            while not got:
                got = consumer.poll(timeout_ms=20_000)
        with Admin(nameserver=cluster.nameserver, use_tls=True) as stranger, pytest.raises(NetworkError, match="nobody trusted"):
            stranger.cluster()
    finally:
        cluster.kill()
    assert [message.body for message in got] == [b"hello"]
