"""A real broker inside this process: real sockets, a real directory."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from halfmoon.broker.settings import VipChannel
from halfmoon.errors import SettingError
from halfmoon.model import split_address
from halfmoon.testing.local import LocalCluster
from halfmoon.testing.requests import messages_of, pull_request, send_request
from halfmoon.wire.bodies import TopicRouteData, from_json
from halfmoon.wire.command import Command, decode, encode, request_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.route import GetRouteinfoByTopic


def ask(address: str, request: Any, body: bytes = b"") -> Command:
    """Send a request over a socket of its own and return the reply."""
    inbox = Inbox()
    with socket.create_connection(split_address(address), timeout=60) as connection:
        connection.sendall(encode(request_command(request, body, opaque=1)))
        while True:
            inbox.feed(connection.recv(65536))
            for frame in inbox.frames():
                return decode(frame.header, frame.body, frame.serialization)


def send(cluster: LocalCluster, body: bytes) -> Command:
    return ask(cluster.broker, send_request("orders", 0, "paid", "k", "u", 1, long=False), body)


def bodies(cluster: LocalCluster) -> list[bytes]:
    return [message.body for message, _ in messages_of(ask(cluster.broker, pull_request("g", "orders", 0, 0)))]


def test_clients_send_pull_and_find_the_route(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "store") as cluster:
        assert send(cluster, b"hello").code == 0
        assert bodies(cluster) == [b"hello"]
        route = ask(cluster.nameserver, GetRouteinfoByTopic(topic="orders"))
        found = from_json(TopicRouteData, route.body)
        assert [data.broker_addrs[0] for data in found.broker_datas] == [cluster.broker]
    assert not cluster.running


def test_a_restart_keeps_addresses_and_messages(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        send(cluster, b"before")
        before = (cluster.nameserver, cluster.broker)
        cluster.restart()
        assert (cluster.nameserver, cluster.broker) == before
        assert bodies(cluster) == [b"before"]


def test_a_kill_loses_nothing_that_was_acknowledged_and_the_abort_file_says_so(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        for i in range(10):
            assert send(cluster, b"%d" % i).code == 0
        cluster.kill()
        assert (tmp_path / "abort").exists()
        with pytest.raises(OSError):
            socket.create_connection(split_address(cluster.broker), timeout=1)
        cluster.start()
        assert bodies(cluster) == [b"%d" % i for i in range(10)]
    assert not (tmp_path / "abort").exists()


def test_nobody_else_gets_the_ports_of_a_killed_cluster(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.kill()
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(split_address(cluster.broker))
        cluster.start()
        assert send(cluster, b"after").code == 0


def test_verbs_may_be_repeated(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.stop()
    cluster.start()
    cluster.start()
    cluster.stop()
    cluster.kill()
    assert not cluster.running


def test_several_clusters_run_side_by_side(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "a") as one, LocalCluster(tmp_path / "b") as other:
        send(one, b"one")
        send(other, b"other")
        assert (bodies(one), bodies(other)) == ([b"one"], [b"other"])


def test_any_setting_can_be_given_by_our_name_or_rocketmqs(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, {"flushDiskType": "SYNC_FLUSH", "broker.region": "here"}) as cluster:
        reply = send(cluster, b"x")
        assert reply.fields["MSG_REGION"] == "here"


def test_a_wrong_setting_is_an_error_and_leaves_nothing_running(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, {"flushDiskTyp": "SYNC_FLUSH"})
    with pytest.raises(SettingError):
        cluster.start()
    assert not cluster.running


def test_settings_may_be_keywords_which_go_before_the_mapping(tmp_path: Path) -> None:
    given = {"autoCreateTopicEnable": "true", "brokerName": "broker-z"}
    with LocalCluster(tmp_path, given, auto_create_topics=False, vip_channel=VipChannel.NEVER) as cluster:
        assert send(cluster, b"refused").code == 17
    with pytest.raises(SettingError, match="unknown setting 'auto_create'"):
        LocalCluster(tmp_path, auto_create=False).start()  # type: ignore[call-arg]
