"""Where a broker is read: from its files where they are readable and surely its own; the choice is logged with its reason."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from halfmoon import Message, Producer
from halfmoon.client.ranges import Ranges
from halfmoon.data.dataset.stores import check_place, readers_of
from halfmoon.data.files import StoreFiles
from halfmoon.data.partitions import Range
from halfmoon.errors import NoPermission, UsageError
from halfmoon.testing.local import LocalCluster
from tests.waiting import until

pytestmark = pytest.mark.slow

BROKER = "broker-a"


def visible(nameserver: str, topic: str) -> Range:
    """Send a message to a topic of one queue; return its range once readers may see it."""
    with Producer(group="P", nameserver=nameserver) as producer:
        queue = producer.queues(topic)[0]
        producer.send(Message(topic, b"x"), queue=queue)
    with Ranges(nameserver=nameserver) as client:
        until(lambda: client.bounds(topic)[BROKER, queue.queue_id] == (0, 1))
    return Range(topic, BROKER, queue.queue_id, 0, 1)


@pytest.fixture
def span(cluster: LocalCluster, topic: str) -> Range:
    return visible(cluster.nameserver, topic)


@pytest.fixture
def client(cluster: LocalCluster) -> Ranges:
    with Ranges(nameserver=cluster.nameserver) as found:
        yield found


def test_files_are_read_where_they_are_here_and_the_choice_is_logged(
    cluster: LocalCluster, client: Ranges, span: Range, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "halfmoon.data")

    assert isinstance(readers_of(client, [span], "auto")[BROKER], StoreFiles)
    assert caplog.messages == [f"read from files: topic={span.topic} broker={BROKER} directory={cluster.data}"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "it does not say where its store is"),
        ("data/store", "it does not say where its store is"),
        ("/nowhere", "/nowhere is not readable here"),
        (NoPermission("not for you"), "not for you"),
    ],
)
def test_the_broker_is_read_where_its_files_are_not_to_be_had(
    client: Ranges, span: Range, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, said: object, reason: str
):
    def store_directory(self: Ranges, queue: object) -> str:
        if isinstance(said, Exception):
            raise said
        return str(said)

    caplog.set_level(logging.INFO, "halfmoon.data")
    monkeypatch.setattr(Ranges, "store_directory", store_directory)

    assert readers_of(client, [span], "auto")[BROKER] is client
    (line,) = caplog.messages
    assert line.startswith(f"read from the broker: topic={span.topic} broker={BROKER} reason=")
    assert reason in line


def test_files_of_another_broker_with_the_same_topic_are_not_read(
    client: Ranges, span: Range, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO, "halfmoon.data")
    with LocalCluster(tmp_path / "other") as other:
        visible(other.nameserver, span.topic)
        monkeypatch.setattr(Ranges, "store_directory", lambda *_: str(other.data))

        assert readers_of(client, [span], "auto")[BROKER] is client
    assert "is not the store of broker-a" in caplog.text


def test_a_place_that_is_given_is_taken(cluster: LocalCluster, client: Ranges, span: Range):
    assert readers_of(client, [span], "master") == {BROKER: client}
    assert isinstance(readers_of(client, [span], f"files:{cluster.data}")[BROKER], StoreFiles)
    assert readers_of(client, [], "auto") == {}


@pytest.mark.parametrize("place", ["", "files", "files:", "files:data", "broker"])
def test_a_place_that_is_none_is_refused(place: str):
    with pytest.raises(UsageError, match="give auto, master, or files:/DIR"):
        check_place(place)
