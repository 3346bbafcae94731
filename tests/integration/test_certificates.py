"""Clients without an access key at a broker with accounts: over real TLS, their certificate says who they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon.cli.main import main
from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PullConsumer
from halfmoon.errors import AccessRefused
from halfmoon.model import ConsumeFrom, Message
from halfmoon.testing.local import LocalCluster
from tests.authority import Authority
from tests.waiting import until

RULES = """
accounts:
- {accessKey: orders-account, secretKey: never-used-1, certificate: orders.example,
   topicPerms: [orders=PUB|SUB], groupPerms: [G_orders=SUB]}
- {accessKey: reports-account, secretKey: never-used-2, certificate: [reports.example, r2.example],
   topicPerms: [reports=PUB|SUB], groupPerms: [G_reports=SUB]}
- {accessKey: operator-account, secretKey: never-used-3, certificate: operator.example, admin: true}
"""


def write(data: Path, rules: str) -> None:
    """Replace the file of accounts."""
    file = data / "conf" / "plain_acl.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(rules)
    new.chmod(0o600)
    new.rename(file)


class World:
    """A cluster with accounts and certificates."""

    def __init__(self, cluster: LocalCluster, authority: Authority, data: Path) -> None:
        self.cluster, self.authority, self.data = cluster, authority, data

    def client(self, name: str | None, **more: Any) -> dict[str, Any]:
        """Settings of a client that shows a certificate with a name, or none."""
        pair = self.authority.pair(name, name) if name is not None else None
        shown = {"tls_cert": pair.cert, "tls_key": pair.key} if pair is not None else {}
        return {"nameserver": self.cluster.nameserver, "use_tls": True, "tls_ca": self.authority.ca, **shown, **more}

    def create(self, topic: str) -> None:
        with Admin(**self.client("operator.example")) as admin:
            admin.create_topic(topic, queue_count=1)

    def send(self, topic: str, *bodies: bytes, **settings: Any) -> None:
        with Producer(group="P_any", **settings) as producer:
            for body in bodies:
                producer.send(Message(topic=topic, body=body))

    def refusal(self, topic: str, **settings: Any) -> str:
        """Why a send is refused."""
        with pytest.raises(AccessRefused) as caught:
            self.send(topic, b"refused", **settings)
        return str(caught.value).partition("AclException: ")[2].partition("  BROKER")[0]


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    authority, data = Authority(tmp_path / "certificates"), tmp_path / "data"
    pair = authority.pair("server")
    write(data, RULES)
    settings = {
        "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key, "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "optional", "tls.server.trustCertPath": authority.ca, "aclEnable": "true",
        **getattr(request, "param", {}),
    }  # fmt: skip
    with LocalCluster(data, settings) as cluster:
        yield World(cluster, authority, data)


def test_a_client_sends_and_consumes_by_its_certificate_alone_and_another_accounts_is_refused(world: World) -> None:
    world.create("orders")
    ours = world.client("orders.example")
    world.send("orders", *[b"%d" % number for number in range(20)], **ours)
    with PullConsumer(group="G_orders", consume_from=ConsumeFrom.FIRST_OFFSET, **ours) as consumer:
        consumer.subscribe("orders")
        got: list[bytes] = []
        while len(got) < 20:
            got += [message.body for message in consumer.poll(timeout_ms=30_000)]
    assert got == [b"%d" % number for number in range(20)]

    assert world.refusal("orders", **world.client("r2.example")) == "No default permission for topic:orders"
    stranger = world.refusal("orders", **world.client("stranger.example"))
    assert stranger == "No accessKey is configured, and no account has the certificate 'stranger.example'"
    assert world.refusal("orders", **world.client(None)) == "No accessKey is configured"
    other = world.client("reports.example", access_key="orders-account", secret_key="never-used-1")
    assert world.refusal("orders", **other) == "The certificate is that of reports-account, and not of accessKey=orders-account"
    world.send("orders", b"signed", **world.client("orders.example", access_key="orders-account", secret_key="never-used-1"))


def test_commands_work_with_a_certificate_alone_at_broker_and_name_server(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def command(name: str, *words: str) -> int:
        settings = world.client(name)
        tls = ["--tls-ca", settings["tls_ca"], "--tls-cert", settings["tls_cert"], "--tls-key", settings["tls_key"]]
        return main([*words, "-n", world.cluster.nameserver, *tls])

    assert command("operator.example", "topic", "create", "orders") == 0
    assert command("orders.example", "produce", "orders", "hello") == 0
    capsys.readouterr()
    assert command("orders.example", "topic", "create", "more") != 0
    assert "Need admin permission for request code=17, but accessKey=orders-account is not" in capsys.readouterr().err
    assert command("operator.example", "topic", "delete", "orders", "--yes") == 0


@pytest.mark.parametrize("world", [{"tls.server.mode": "permissive"}], indirect=True)
def test_plain_text_on_the_same_port_is_nobodys(world: World) -> None:
    world.create("orders")
    world.send("orders", b"x", **world.client("orders.example"))

    assert world.refusal("orders", nameserver=world.cluster.nameserver) == "No accessKey is configured"


def test_a_client_that_stays_connected_is_refused_once_its_account_is_gone(world: World) -> None:
    world.create("orders")

    def is_refused(producer: Producer) -> bool:
        try:
            producer.send(Message(topic="orders", body=b"x"))
        except AccessRefused as exc:
            return "no account has the certificate 'orders.example'" in str(exc)
        return False

    with Producer(group="P_any", **world.client("orders.example")) as producer:
        producer.send(Message(topic="orders", body=b"x"))
        write(world.data, RULES.replace("orders.example", "renamed.example"))
        until(lambda: is_refused(producer))
        write(world.data, RULES)
        until(lambda: not is_refused(producer))


def test_a_broker_registers_by_the_certificate_that_a_name_server_lists_and_by_no_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    server = authority.pair("server")
    tls = {
        "tls.server.certPath": server.cert, "tls.server.keyPath": server.key, "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "optional", "tls.server.trustCertPath": authority.ca,
        "tls.client.trustCertPath": authority.ca,
    }  # fmt: skip

    def broker(name: str) -> dict[str, Any]:
        pair = authority.pair(name, f"{name}.example")
        return {"broker.name": name, "tls.client.certPath": pair.cert, "tls.client.keyPath": pair.key}

    def known(nameserver: str) -> set[str]:
        with Admin(nameserver=nameserver, use_tls=True, tls_ca=authority.ca) as admin:
            return set(admin.cluster().broker_addr_table)

    with LocalCluster(tmp_path / "a", {**tls, "nameserver.register_certificates": "broker-b.example"}) as first:
        found = []
        for name in ("broker-c", "broker-b"):
            with LocalCluster(tmp_path / name, {**tls, **broker(name), "broker.nameserver": first.nameserver}):
                found.append(known(first.nameserver))
    assert found == [{"broker-a"}, {"broker-a", "broker-b"}]
