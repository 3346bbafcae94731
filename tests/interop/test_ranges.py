"""Ranges read from Apache's published brokers, which know nothing of them: by pulls, exact all the same. And batches, refused."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.batches import BatchName, BatchTransactions
from halfmoon.client.ranges import OffsetsLost, Ranges, Selection
from halfmoon.client.sync import Producer
from halfmoon.errors import UsageError
from halfmoon.model import Message
from halfmoon.wire.record import BatchItem, decode_records, encode_batch
from tests.interop.apache import Cluster

TOPIC, COUNT = "Ranges", 1_000


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(request.param, tmp_path_factory.mktemp("server")).start()
    try:
        with Admin(nameserver=found.nameserver) as admin:
            admin.create_topic(TOPIC, queue_count=2)
        with Producer(group="P", nameserver=found.nameserver) as producer:
            queues = producer.queues(TOPIC)
            for at in range(0, COUNT, 50):
                if at == COUNT // 2:
                    time.sleep(0.05)
                batch = [Message(TOPIC, b"%d " % k + bytes(300)) for k in range(at, at + 50)]
                producer.send_batch(batch, queue=queues[at // 50 % 2])
        yield found
    finally:
        found.kill()


@pytest.fixture
def client(server: Cluster) -> Iterator[Ranges]:
    with Ranges(nameserver=server.nameserver, retries_max=3) as found:
        yield found


def test_every_message_of_a_range_comes_once_and_in_order(client: Ranges) -> None:
    ends = client.bounds(TOPIC)
    found = {key: list(client.read(key[0], TOPIC, key[1], low, high, 64 * 1024)) for key, (low, high) in ends.items()}

    assert sorted(ends.values()) == [(0, COUNT // 2)] * 2
    assert client._foreign_brokers != set()
    for pieces in found.values():
        assert [message.queue_offset for raw in pieces for message in decode_records(raw)] == list(range(COUNT // 2))
        assert all(len(piece) <= 64 * 1024 for piece in pieces)
    bodies = {message.body.split()[0] for pieces in found.values() for raw in pieces for message in decode_records(raw)}
    assert bodies == {b"%d" % k for k in range(COUNT)}


def test_ranges_are_weighed_by_a_few_messages_and_a_selection_brings_everything(client: Ranges) -> None:
    ends = client.bounds(TOPIC)
    everything = {key: list(client.read(key[0], TOPIC, key[1], *ends[key], selection=Selection("nobody"))) for key in ends}
    true = {key: sum(map(len, pieces)) for key, pieces in everything.items()}

    found = client.weigh(TOPIC, ends)

    assert [message.queue_offset for raw in min(everything.items())[1] for message in decode_records(raw)] == list(
        range(COUNT // 2)
    )
    assert all(0.9 * true[key] < sum(found[key]) < 1.1 * true[key] for key in ends)


def test_a_part_of_a_queue_is_cut_exactly(client: Ranges) -> None:
    (broker, queue), _ = min(client.bounds(TOPIC).items())

    found = [message.queue_offset for raw in client.read(broker, TOPIC, queue, 33, 435) for message in decode_records(raw)]

    assert found == list(range(33, 435))


def test_offsets_by_time_are_the_same_whatever_the_brokers_version(client: Ranges) -> None:
    bounds = client.bounds(TOPIC)
    assert bounds
    for (broker, queue), (low, high) in bounds.items():
        stored = [message.store_ms for raw in client.read(broker, TOPIC, queue, low, high) for message in decode_records(raw)]
        for moment in (stored[0] - 5, stored[0], stored[100], stored[250] - 1, stored[250], stored[-1], stored[-1] + 1):
            first = next((k for k, ms in enumerate(stored) if ms >= moment), high)
            assert client.offsets_at(TOPIC, moment)[broker, queue] == first


def test_offsets_behind_the_end_are_told_with_what_the_queue_holds(client: Ranges) -> None:
    (broker, queue), _ = min(client.bounds(TOPIC).items())

    with pytest.raises(OffsetsLost, match=r"messages 500 to 599 .* holds 0 to 500"):
        list(client.read(broker, TOPIC, queue, 490, 600))


def test_nothing_can_be_written_exactly_once_and_the_error_says_what_can(server: Cluster) -> None:
    with BatchTransactions(nameserver=server.nameserver, retries_max=1) as batches:
        queue = batches.queues(TOPIC)[0]
        with pytest.raises(UsageError, match="delivery=at-least-once"):
            batches.prepare(BatchName("q", 0), "a", 0, queue, 0, 1, encode_batch([BatchItem(b"x", b"")])).result(60)
