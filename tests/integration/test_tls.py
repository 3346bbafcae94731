"""Our clients over TLS to a name server and a broker of ours, both on one port with plain text or alone."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.aio import AsyncProducer
from halfmoon.client.bulk import BulkProducer
from halfmoon.client.ranges import Ranges
from halfmoon.client.sync import Producer, PullConsumer
from halfmoon.errors import HalfmoonError, NetworkError, SettingError
from halfmoon.model import ConsumeFrom, Message
from halfmoon.programs.configuration import NAME_SERVER, configuration
from halfmoon.programs.embedded import name_server, start, stop
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import request_bytes
from halfmoon.wire.headers.send import SendMessage
from halfmoon.wire.record import decode_records
from tests.authority import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def cluster(tmp_path: Path, authority: Authority, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A cluster that takes only TLS, or also what the parameter says."""
    pair = authority.pair("server")
    settings = {"tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key, "tls.server.mode": "enforcing"}
    with LocalCluster(tmp_path / "data", {**settings, **getattr(request, "param", {})}) as found:
        yield found


def consumed(topic: str, count: int, **settings: Any) -> list[bytes]:
    return [message.body for message in consumed_messages(topic, count, **settings)]


def consumed_messages(topic: str, count: int, **settings: Any) -> list[Any]:
    with PullConsumer(group="G_tls", consume_from=ConsumeFrom.FIRST_OFFSET, **settings) as consumer:
        consumer.subscribe(topic)
        got: list[Any] = []
        while len(got) < count:
            got += consumer.poll(timeout_ms=30_000)
        return got


def test_everything_goes_over_tls_where_nothing_else_is_taken(cluster: LocalCluster, authority: Authority) -> None:
    secure = {"nameserver": cluster.nameserver, "use_tls": True, "tls_ca": authority.ca}
    with Admin(**secure) as admin:
        admin.create_topic("orders", queue_count=2)
    with Producer(group="P_tls", **secure) as producer:
        for number in range(10):
            producer.send(Message(topic="orders", body=b"%d" % number))
    assert sorted(consumed("orders", 10, **secure)) == [b"%d" % number for number in range(10)]
    with Ranges(**secure) as ranges:
        records = [
            b"".join(ranges.read(broker, "orders", queue, begin, end))
            for (broker, queue), (begin, end) in ranges.bounds("orders").items()
        ]
        assert sum(len(decode_records(found)) for found in records) == 10


def test_a_plain_client_is_refused_where_only_tls_is_taken(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises((NetworkError, HalfmoonError)), Admin(nameserver=cluster.nameserver, request_timeout_ms=2_000) as admin:
        admin.create_topic("orders")
    assert "plain text, where only TLS is spoken" in caplog.text


@pytest.mark.parametrize("cluster", [{"tls.server.mode": "permissive"}], indirect=True)
async def test_plain_and_encrypted_clients_share_a_port(cluster: LocalCluster, authority: Authority) -> None:
    async with (
        AsyncProducer(group="P_plain", nameserver=cluster.nameserver) as plain,
        AsyncProducer(group="P_tls", nameserver=cluster.nameserver, use_tls=True, tls_ca=authority.ca) as secure,
    ):
        for producer in (plain, secure, plain, secure):
            await producer.send(Message(topic="both", body=os.urandom(100_000)))


def test_a_client_that_does_not_know_who_signed_says_so_with_the_address(cluster: LocalCluster) -> None:
    with (
        Admin(nameserver=cluster.nameserver, use_tls=True) as admin,
        pytest.raises(NetworkError, match=rf"{cluster.nameserver}.*nobody trusted signed the certificate.*tls_ca"),
    ):
        admin.cluster()


@pytest.mark.parametrize("cluster", [{"tls.server.mode": "disabled"}], indirect=True)
def test_a_client_is_told_where_tls_is_off_and_the_log_names_the_knock(
    cluster: LocalCluster, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Admin(nameserver=cluster.nameserver, use_tls=True, tls_ca=authority.ca) as admin,
        pytest.raises(NetworkError, match="TLS may be off there"),
    ):
        admin.cluster()
    assert "speaks TLS, which is off here" in caplog.text


def test_variables_stand_for_settings_that_were_not_given(
    cluster: LocalCluster, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HALFMOON_TLS", "true")
    monkeypatch.setenv("HALFMOON_TLS_CA", authority.ca)
    with Admin(nameserver=cluster.nameserver) as admin:
        assert admin.cluster().broker_addr_table
    given = Authority(tmp_path / "foreign").ca  # it goes before
    with Admin(nameserver=cluster.nameserver, tls_ca=given) as admin, pytest.raises(NetworkError, match="nobody trusted"):
        admin.cluster()
    monkeypatch.setenv("HALFMOON_TLS_VERIFY", "perhaps")
    with pytest.raises(SettingError, match="HALFMOON_TLS_VERIFY: tls_verify = 'perhaps': must be true or false"):
        Admin(nameserver=cluster.nameserver)


def test_a_broker_of_another_process_verifies_its_name_server(tmp_path: Path, authority: Authority) -> None:
    pair = authority.pair("server")
    tls = [f"tls.server.certPath={pair.cert}", f"tls.server.keyPath={pair.key}", "tls.server.mode=enforcing"]
    other = {"broker.name": "broker-b", "broker.nameserver": ""}

    def known(nameserver: str) -> set[str]:
        with Admin(nameserver=nameserver, use_tls=True, tls_ca=authority.ca) as admin:
            return set(admin.cluster().broker_addr_table)

    settings: dict[str, object] = {key: value for key, _, value in (text.partition("=") for text in tls)}
    with LocalCluster(tmp_path / "a", settings) as first:
        other["broker.nameserver"] = first.nameserver
        with LocalCluster(tmp_path / "b", {**settings, **other}):  # it trusts nobody who signed
            assert known(first.nameserver) == {"broker-a"}
        with LocalCluster(tmp_path / "c", {**settings, **other, "tls.client.trustCertPath": authority.ca}):
            assert known(first.nameserver) == {"broker-a", "broker-b"}


async def test_a_certificate_that_does_not_load_stops_the_start_and_leaves_the_port(tmp_path: Path) -> None:
    wrong = configuration(NAME_SERVER, assignments=["nameserver.port=0", "tls.server.certPath=/nowhere.pem"])
    with pytest.raises(SettingError, match=r"/nowhere\.pem: cannot be read"):
        await name_server(wrong, None)
    right = await name_server(configuration(NAME_SERVER, assignments=["nameserver.port=0"]), None)
    await start((right,))
    await stop((right,))


def test_a_bulk_producer_sends_over_tls(cluster: LocalCluster, authority: Authority) -> None:
    with Admin(nameserver=cluster.nameserver, use_tls=True, tls_ca=authority.ca) as admin:
        admin.create_topic("bulk", queue_count=1)
    with contextlib.closing(
        BulkProducer(group="P_bulk", nameserver=cluster.nameserver, use_tls=True, tls_ca=authority.ca)
    ) as producer:
        producer.start()
        assert len(producer.queues("bulk")) == 1


def test_a_message_through_a_trusted_proxy_was_born_where_its_sender_is(tmp_path: Path) -> None:
    header = SendMessage(
        producer_group="P", topic="proxied", default_topic="TBW102", default_topic_queue_nums=1, queue_id=0, sys_flag=0,
        born_timestamp=1, flag=0, properties="",
    )  # fmt: skip
    with LocalCluster(tmp_path / "data", {"broker.proxy_protocol_from": "127.0.0.1"}) as cluster:
        with socket.create_connection(("127.0.0.1", int(cluster.broker.rpartition(":")[2]))) as proxy:
            proxy.sendall(b"PROXY TCP4 203.0.113.7 127.0.0.1 4711 10911\r\n" + request_bytes(header, b"hello", 1, JSON))
            assert proxy.recv(65536)
        (message,) = consumed_messages("proxied", 1, nameserver=cluster.nameserver)
    assert (message.body, message.born_host) == (b"hello", "203.0.113.7:4711")
