"""Reading a store's files while its broker runs: the same bytes as the broker's answers, and nothing that is not sure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from halfmoon import Admin, Message, Producer
from halfmoon.client.ranges import OffsetsLost, Ranges
from halfmoon.data.files import StoreFiles
from halfmoon.errors import BadMessage, UsageError
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.record import decode_records

pytestmark = pytest.mark.slow

BROKER = "broker-a"
_numbers = count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    small = {"mappedFileSizeConsumeQueue": 2_000, "mappedFileSizeCommitLog": 256 * 1024, "maxMessageSize": 64 * 1024}
    with LocalCluster(tmp_path_factory.mktemp("broker"), small) as found:
        yield found


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Ranges]:
    with Ranges(nameserver=cluster.nameserver) as found:
        yield found


@pytest.fixture
def files(cluster: LocalCluster, client: Ranges) -> StoreFiles:
    return StoreFiles(client, str(cluster.data))


def filled(cluster: LocalCluster, number: int, size: int = 200, batch: int = 7) -> str:
    """Return a topic with messages, in turn in both its queues."""
    topic = f"topic_{next(_numbers)}"
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(topic, queue_count=2)
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        queues = producer.queues(topic)
        for at in range(0, number, batch):
            some = [Message(topic, b"%d " % k + bytes(size + k % 3)) for k in range(at, min(at + batch, number))]
            producer.send_batch(some, queue=queues[at // batch % 2])
    return topic


def test_the_files_give_the_same_bytes_as_the_broker_over_all_files(cluster: LocalCluster, client: Ranges, files: StoreFiles):
    topic = filled(cluster, 2_500)
    ends = client.bounds(topic)
    assert len(list((cluster.data / "commitlog").iterdir())) > 2
    assert len(list((cluster.data / "consumequeue" / topic / "0").iterdir())) > 2

    for (broker, queue), (low, high) in ends.items():
        for begin, end, size in ((low, high, 1 << 20), (low + 3, high - 5, 10_000), (high - 1, high, 1), (low, low, 1)):
            theirs = b"".join(client.read(broker, topic, queue, begin, end))
            pieces = list(files.read(broker, topic, queue, begin, end, size))
            assert b"".join(pieces) == theirs
            assert all(len(piece) <= size or len(decode_records(piece)) == 1 for piece in pieces)


def test_stale_entries_and_records_behind_the_end_are_never_looked_at(cluster: LocalCluster, client: Ranges, files: StoreFiles):
    topic = filled(cluster, 60)
    _, high = client.bounds(topic)[BROKER, 0]
    path = sorted((cluster.data / "consumequeue" / topic / "0").iterdir())[0]
    with path.open("r+b") as file:  # an entry of a run before: it points at a record that is somewhere
        entry = path.read_bytes()[:20]
        file.seek(high * 20)
        file.write(entry * 5)

    found = [message.queue_offset for raw in files.read(BROKER, topic, 0, 0, high) for message in decode_records(raw)]
    with pytest.raises(BadMessage, match=f"message {high} is not at"):
        list(files.read(BROKER, topic, 0, 0, high + 3))

    assert found == list(range(high))


def test_offsets_that_were_never_written_are_an_error_and_no_gap(cluster: LocalCluster, client: Ranges, files: StoreFiles):
    topic = filled(cluster, 20)
    _, high = client.bounds(topic)[BROKER, 0]

    with pytest.raises(BadMessage, match=f"the entry of message {high} is none"):
        list(files.read(BROKER, topic, 0, 0, high + 1, missing=lambda begin, end: None))
    with pytest.raises(BadMessage, match="no file holds the entry of message 5000"):
        list(files.read(BROKER, topic, 0, 5_000, 5_001))


def test_a_record_that_is_not_the_one_of_its_entry_is_refused(cluster: LocalCluster, client: Ranges, files: StoreFiles):
    topic = filled(cluster, 40)
    _, high = client.bounds(topic)[BROKER, 1]
    path = sorted((cluster.data / "consumequeue" / topic / "1").iterdir())[0]
    data = path.read_bytes()
    with path.open("r+b") as file:  # two entries change places
        file.seek(3 * 20)
        file.write(data[80:100] + data[60:80])

    with pytest.raises(BadMessage, match="message 3 is not at"):
        list(files.read(BROKER, topic, 1, 0, high))


def test_a_directory_of_another_broker_is_refused(cluster: LocalCluster, client: Ranges, tmp_path: Path):
    topic = filled(cluster, 20)
    with LocalCluster(tmp_path) as other:
        with Admin(nameserver=other.nameserver) as admin:
            admin.create_topic(topic, queue_count=2)
        with Producer(group="P", nameserver=other.nameserver) as producer:
            for queue in producer.queues(topic):
                producer.send_batch([Message(topic, b"%d" % k) for k in range(10)], queue=queue)
        with Admin(nameserver=other.nameserver) as admin:
            assert admin.topic_stats(topic)  # what is told is in the files
        with pytest.raises(UsageError, match=r"is not the store of broker-a.*read from the broker"):
            list(StoreFiles(client, str(tmp_path)).read(BROKER, topic, 0, 0, 5))


@pytest.mark.parametrize("queue", [0, 7])
def test_a_directory_without_the_queue_is_named(client: Ranges, cluster: LocalCluster, tmp_path: Path, queue: int):
    topic = filled(cluster, 20)
    directory = tmp_path if queue == 0 else cluster.data

    with pytest.raises(UsageError, match=f"no queue {queue} of {topic} in {directory}"):
        list(StoreFiles(client, str(directory)).read(BROKER, topic, queue, 0, 1))


def test_a_topic_cannot_lead_out_of_the_directory(client: Ranges, files: StoreFiles):
    for topic in ("../../etc", "a/b", "..", ""):
        with pytest.raises(UsageError):
            files.read(BROKER, topic, 0, 0, 1)


def test_what_is_no_range_is_refused(files: StoreFiles):
    for begin, end, queue, size in ((6, 5, 0, 1), (-1, 5, 0, 1), (0, 5, -1, 1), (0, 5, 0, 0)):
        with pytest.raises(UsageError):
            files.read(BROKER, "t", queue, begin, end, size)


def test_expired_messages_are_an_error_or_reported_as_by_the_broker(tmp_path: Path):
    small = {"mappedFileSizeConsumeQueue": 2_000, "mappedFileSizeCommitLog": 256 * 1024, "maxMessageSize": 64 * 1024}
    with LocalCluster(tmp_path, small) as cluster:
        topic = filled(cluster, 2_500)
        cluster.stop()
        sorted((tmp_path / "commitlog").iterdir())[0].unlink()
        cluster.start()
        with Ranges(nameserver=cluster.nameserver) as client:
            low, high = client.bounds(topic)[BROKER, 0]
            assert low > 3
            files = StoreFiles(client, str(tmp_path))
            theirs: list[tuple[int, int]] = []
            ours: list[tuple[int, int]] = []
            broker = b"".join(client.read(BROKER, topic, 0, 3, high, missing=lambda *gap: theirs.append(gap)))
            local = b"".join(files.read(BROKER, topic, 0, 3, high, missing=lambda *gap: ours.append(gap)))
            with pytest.raises(OffsetsLost, match=r"messages 3 to "):
                list(files.read(BROKER, topic, 0, 3, high))

    assert local == broker
    assert theirs == [(3, low)]
    assert sorted({offset for gap in ours for offset in range(*gap)}) == list(range(3, low))


def test_few_files_stay_mapped_and_a_file_made_anew_is_mapped_anew(cluster: LocalCluster, client: Ranges, files: StoreFiles):
    files.files_max = 3
    topic = filled(cluster, 1_000)
    _, high = client.bounds(topic)[BROKER, 0]
    whole = list(files.read(BROKER, topic, 0, 0, high))
    assert len(files._mapped) == 3

    path = sorted((cluster.data / "consumequeue" / topic / "0").iterdir())[-1]
    known = files.mapped(f"consumequeue/{topic}/0/{path.name}")
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    os.replace(copy, path)

    assert files.mapped(f"consumequeue/{topic}/0/{path.name}") is not known
    assert b"".join(files.read(BROKER, topic, 0, 0, high)) == b"".join(whole)
