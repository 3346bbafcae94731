"""The client of ranges against a real broker of ours: every record once and in order, through restarts, cuts and losses."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from halfmoon import Admin, Message, Producer
from halfmoon.client.ranges import OffsetsLost, Ranges, Selection, ranges
from halfmoon.errors import NoRoute, SettingError, TopicNotFound, UsageError
from halfmoon.runtime.connections.blocking_connections import SocketConnection
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.record import decode_records
from tests.topics import new_topic

pytestmark = pytest.mark.slow

KIB = 1024


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return new_topic(cluster.nameserver, queue_count=2)


@pytest.fixture(params=["long answers", "pulls"])
def client(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Ranges]:
    with Ranges(nameserver=cluster.nameserver, retries_max=4) as running:
        if request.param == "pulls":  # as from a broker that is not ours
            running._foreign_brokers.add(cluster.broker)
        yield running


def fill(cluster: LocalCluster, topic: str, number: int, size: int = 100) -> None:
    """Send messages, in turn to each queue; the body begins with the number."""
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        queues = producer.queues(topic)
        for at in range(0, number, 20):
            batch = [Message(topic, b"%d " % k + bytes(size)) for k in range(at, min(at + 20, number))]
            producer.send_batch(batch, queue=queues[at // 20 % len(queues)])


def offsets(pieces: Any) -> list[int]:
    return [message.queue_offset for piece in pieces for message in decode_records(piece)]


def test_ends_queues_and_topics_are_told(cluster: LocalCluster, topic: str, client: Ranges):
    fill(cluster, topic, 100)

    assert client.bounds(topic) == {("broker-a", 0): (0, 60), ("broker-a", 1): (0, 40)}
    assert [(queue.topic, queue.broker_name, queue.queue_id) for queue in client.queues(topic)] == [
        (topic, "broker-a", 0),
        (topic, "broker-a", 1),
    ]
    assert topic in client.topics()


def test_queues_that_are_only_read_have_the_ends_that_they_have(cluster: LocalCluster, topic: str, client: Ranges):
    fill(cluster, topic, 100)
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_group("G_reader")
        admin.create_topic(topic, write_queue_count=1)  # RocketMQ's way of removing queues
        ends = {queue.queue_id: end.max_offset for queue, end in admin.topic_stats(topic).items()}
        moves = admin.reset_offsets("G_reader", topic, "earliest")
        again = admin.reset_offsets("G_reader", topic, "latest")
    assert client.bounds(topic) == {("broker-a", 0): (0, 60), ("broker-a", 1): (0, 40)}
    assert ends == {0: 60, 1: 40}
    assert [(move.queue.queue_id, move.then) for move in (*moves, *again)] == [(0, 0), (1, 0), (0, 60), (1, 40)]
    assert client.committed("G_reader", topic) == {("broker-a", 0): 60, ("broker-a", 1): 40}


def test_a_range_is_read_exactly_in_pieces_of_about_the_size_asked_for(cluster: LocalCluster, topic: str, client: Ranges):
    fill(cluster, topic, 2_000, 500)

    bounds = client.bounds(topic)
    assert len(bounds) == 2
    for (broker, queue), (begin, end) in bounds.items():
        pieces = list(client.read(broker, topic, queue, begin + 7, end - 5, 100 * KIB))
        assert offsets(pieces) == list(range(begin + 7, end - 5))
        assert all(50 * KIB < len(piece) <= 100 * KIB for piece in pieces[:-1])
        assert {message.topic for piece in pieces for message in decode_records(piece)} == {topic}


def test_records_larger_than_a_piece_come_whole(cluster: LocalCluster, client: Ranges):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 3, 100 * KIB)

    pieces = list(client.read("broker-a", topic, 0, 0, 3, KIB))
    assert offsets(pieces) == [0, 1, 2]
    assert len(pieces) >= 2


def test_an_empty_range_yields_nothing_and_what_is_no_range_is_refused(topic: str, client: Ranges):
    assert list(client.read("broker-a", topic, 0, 5, 5)) == []
    for begin, end, queue, size in ((6, 5, 0, 1), (-1, 5, 0, 1), (0, 5, -1, 1), (0, 5, 0, 0)):
        with pytest.raises(UsageError):
            client.read("broker-a", topic, queue, begin, end, size)


def test_offsets_by_time_are_those_of_the_first_message_then_or_later(cluster: LocalCluster, client: Ranges):
    topic = new_topic(cluster.nameserver)
    for _ in range(4):
        fill(cluster, topic, 60)
        time.sleep(0.02)
    pieces = list(client.read("broker-a", topic, 0, 0, 240))
    stored = [message.store_ms for piece in pieces for message in decode_records(piece)]

    for moment in (0, stored[0] - 1, stored[0], stored[59] + 1, stored[60], stored[100], stored[-1], stored[-1] + 1, 2**50):
        first = next((k for k, ms in enumerate(stored) if ms >= moment), len(stored))
        assert client.offsets_at(topic, moment) == {("broker-a", 0): first}


def test_progress_of_a_group_is_stored_and_told(topic: str, client: Ranges, cluster: LocalCluster):
    fill(cluster, topic, 40)
    client.commit("C_job", topic, {("broker-a", 0): 7, ("broker-a", 1): 9})

    assert client.committed("C_job", topic) == {("broker-a", 0): 7, ("broker-a", 1): 9}


def test_offsets_behind_the_end_are_an_error_or_reported(cluster: LocalCluster, client: Ranges):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 50)
    missing: list[tuple[int, int]] = []

    with Ranges(nameserver=cluster.nameserver, retries_max=1) as here:
        here._foreign_brokers |= client._foreign_brokers
        with pytest.raises(OffsetsLost, match=r"messages 50 to 69 of queue 0 .* holds 0 to 50") as raised:
            list(here.read("broker-a", topic, 0, 40, 70))
        read = offsets(here.read("broker-a", topic, 0, 40, 70, missing=lambda begin, end: missing.append((begin, end))))

    assert (raised.value.begin, raised.value.end, raised.value.max_offset) == (50, 70, 50)
    assert (read, missing) == (list(range(40, 50)), [(50, 70)])


def test_messages_that_come_while_their_end_is_waited_for_are_no_loss(cluster: LocalCluster, client: Ranges):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 50)
    later = threading.Timer(0.25, fill, (cluster, topic, 20))
    later.start()

    assert offsets(client.read("broker-a", topic, 0, 0, 70)) == list(range(70))
    later.join()


@contextmanager
def lost_beginning(data: Path) -> Iterator[tuple[LocalCluster, str]]:
    """A cluster with a topic of 2,000 messages, the first of which went with their log file."""
    with LocalCluster(data, {"mappedFileSizeCommitLog": 5 * 1024**2, "maxMessageSize": 4 * 1024**2}) as cluster:
        topic = new_topic(cluster.nameserver)
        fill(cluster, topic, 2_000, 5_000)
        cluster.stop()
        sorted((data / "commitlog").iterdir())[0].unlink()
        cluster.start()
        yield cluster, topic


def test_expired_messages_are_an_error_or_reported_at_once(tmp_path: Path, client: Ranges):
    with lost_beginning(tmp_path) as (cluster, topic), Ranges(nameserver=cluster.nameserver) as here:
        here._foreign_brokers |= {cluster.broker} if client._foreign_brokers else set()
        low, high = here.bounds(topic)["broker-a", 0]
        assert 0 < low < high == 2_000
        with pytest.raises(OffsetsLost, match=rf"messages 3 to {low - 1} of queue 0 .* holds {low} to 2000"):
            list(here.read("broker-a", topic, 0, 3, 2_000))
        missing: list[tuple[int, int]] = []
        found = offsets(here.read("broker-a", topic, 0, 3, 2_000, missing=lambda begin, end: missing.append((begin, end))))

    assert (found, missing) == (list(range(low, 2_000)), [(3, low)])


def test_a_topic_that_was_deleted_is_an_error_that_names_it(cluster: LocalCluster, topic: str, client: Ranges):
    fill(cluster, topic, 4_000)
    reading = client.read("broker-a", topic, 0, 0, 2_000, KIB)
    next(reading)
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.delete_topic(topic)

    with pytest.raises((NoRoute, TopicNotFound), match=topic):
        list(reading)
    with pytest.raises(NoRoute, match=topic):
        client.bounds(topic)


def test_questions_wait_for_a_broker_that_starts_again(tmp_path: Path):
    with LocalCluster(tmp_path) as cluster, Ranges(nameserver=cluster.nameserver) as here:
        topic = new_topic(cluster.nameserver)
        fill(cluster, topic, 20)
        ends = here.bounds(topic)
        cluster.kill()
        back = threading.Timer(0.5, cluster.start)
        back.start()

        assert here.bounds(topic) == ends
        back.join()


def test_a_broker_that_is_killed_and_started_again_costs_no_record(tmp_path: Path, client: Ranges):
    with LocalCluster(tmp_path) as cluster, Ranges(nameserver=cluster.nameserver) as here:
        topic = new_topic(cluster.nameserver)
        fill(cluster, topic, 3_000, 500)
        here._foreign_brokers |= {cluster.broker} if client._foreign_brokers else set()
        reading = here.read("broker-a", topic, 0, 0, 3_000, 20 * KIB)
        found = offsets([next(reading) for _ in range(3)])
        cluster.kill()
        back = threading.Timer(0.5, cluster.start)
        back.start()
        found += offsets(reading)
        back.join()

    assert found == list(range(3_000))


class Proxy:
    """Passes bytes on to a broker, and cuts each of its first connections after so many bytes of answers."""

    def __init__(self, address: str, cuts: list[int]) -> None:
        self._to, self.cuts = ("127.0.0.1", int(address.rpartition(":")[2])), cuts
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                far = socket.create_connection(self._to)
                threading.Thread(target=self._pass_on, args=(near, far, 2**60), daemon=True).start()
                left = self.cuts.pop(0) if self.cuts else 2**60
                threading.Thread(target=self._pass_on, args=(far, near, left), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left and (data := source.recv(min(left, 65536))):
                target.sendall(data)
                left -= len(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


def test_connections_cut_in_mid_answer_cost_no_record_and_repeat_none(
    cluster: LocalCluster, client: Ranges, monkeypatch: pytest.MonkeyPatch
):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 1_000, 300)
    proxy = Proxy(cluster.broker, [3, 150, 5_000, 40_000, 200_001])
    monkeypatch.setattr(client.links, "_open", lambda address, timeout_ms: through(proxy, address))

    found = offsets(client.read("broker-a", topic, 0, 0, 1_000, 64 * KIB))

    proxy.close()
    assert proxy.cuts == []
    assert found == list(range(1_000))


def through(proxy: Proxy, address: str) -> SocketConnection:
    link = SocketConnection(proxy.address, 5_000, ahead_bytes=0)
    link.address = address
    return link


def test_a_broker_that_moved_is_found_by_its_route(cluster: LocalCluster, client: Ranges):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 100)
    client.bounds(topic)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nobody = f"127.0.0.1:{listening.getsockname()[1]}"
    client._client.instance.routes.brokers["broker-a"] = {0: nobody}

    assert offsets(client.read("broker-a", topic, 0, 0, 100)) == list(range(100))


def test_a_read_that_fails_too_often_raises_what_failed(tmp_path: Path):
    with LocalCluster(tmp_path) as cluster, Ranges(nameserver=cluster.nameserver, retries_max=2) as here:
        topic = new_topic(cluster.nameserver)
        fill(cluster, topic, 100)
        here.bounds(topic)
        cluster.kill()
        begin = time.monotonic()
        with pytest.raises(Exception, match=r"connect to 127\.0\.0\.1"):
            list(here.read("broker-a", topic, 0, 0, 100))

    assert time.monotonic() - begin < 30


def test_an_unknown_request_is_answered_with_pulls_from_then_on(cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch):
    fill(cluster, topic, 300)
    handlers = cluster._programs[1].broker._handlers
    monkeypatch.delitem(handlers, 31040)
    with Ranges(nameserver=cluster.nameserver) as here:
        assert offsets(here.read("broker-a", topic, 0, 0, 150)) == list(range(150))
        assert here._foreign_brokers == {cluster.broker}


def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the size of each body is added that comes from now on."""
    sizes: list[int] = []
    body = SocketConnection.body

    def counted(link: SocketConnection) -> bytes:
        found = body(link)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(SocketConnection, "body", counted)
    return sizes


@pytest.mark.parametrize("selection", [Selection("rare"), Selection("number >= 980", "SQL92")])
def test_what_a_selection_leaves_out_does_not_travel(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, selection: Selection):
    topic = new_topic(cluster.nameserver)
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        for at in range(0, 1_000, 50):
            tag = "rare" if at == 950 else "usual"
            batch = [Message(topic, bytes(500), tag=tag, properties={"number": str(k)}) for k in range(at, at + 50)]
            producer.send_batch(batch)
    sizes = received(monkeypatch)
    with Ranges(nameserver=cluster.nameserver) as here:
        everything = list(here.read("broker-a", topic, 0, 0, 1_000))
        whole = sum(sizes)
        sizes.clear()
        found = offsets(here.read("broker-a", topic, 0, 0, 1_000, selection=selection))

    assert offsets(everything) == list(range(1_000))
    assert found == list(range(950 if selection.kind == "TAG" else 980, 1_000))
    assert sum(sizes) * 1_000 <= whole * len(found) * 1.1
    assert len(sizes) < 50


def test_a_selection_at_brokers_that_filter_nothing_brings_everything(cluster: LocalCluster, client: Ranges):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 100)

    for selection in (Selection("this is no expression", "SQL92"), Selection("x" * 40_000)):
        assert offsets(client.read("broker-a", topic, 0, 0, 100, selection=selection)) == list(range(100))


def test_a_selection_hides_no_message_that_is_gone(tmp_path: Path):
    with lost_beginning(tmp_path) as (cluster, topic):
        missing: list[tuple[int, int]] = []
        with Ranges(nameserver=cluster.nameserver) as here:
            low, _ = here.bounds(topic)["broker-a", 0]
            found = list(
                here.read(
                    "broker-a",
                    topic,
                    0,
                    3,
                    2_000,
                    missing=lambda begin, end: missing.append((begin, end)),
                    selection=Selection("x"),
                )
            )

    assert (found, missing) == ([], [(3, low)])


def test_ranges_are_weighed_by_entries_or_by_a_few_messages(cluster: LocalCluster, client: Ranges, monkeypatch: pytest.MonkeyPatch):
    topic = new_topic(cluster.nameserver, queue_count=2)
    fill(cluster, topic, 1_000, 300)
    if client._foreign_brokers:
        monkeypatch.delitem(cluster._programs[1].broker._handlers, 31041)
    ends = client.bounds(topic)
    true = {key: sum(map(len, client.read(key[0], topic, key[1], *ends[key]))) for key in ends}

    found = client.weigh(topic, ends)

    assert found.keys() == ends.keys()
    assert all(len(parts) == 16 for parts in found.values())
    assert all(0.95 * true[key] < sum(found[key]) < 1.05 * true[key] for key in ends)


def test_connections_are_kept_for_the_next_read_unless_it_was_given_up(cluster: LocalCluster, client: Ranges):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 1_000, 300)
    list(client.read("broker-a", topic, 0, 0, 100))
    first = client.links.take(cluster.broker, 5_000)
    client.links.give(first)
    list(client.read("broker-a", topic, 0, 0, 100))
    again = client.links.take(cluster.broker, 5_000)
    client.links.give(again)
    reading = client.read("broker-a", topic, 0, 0, 1_000, 20 * KIB)
    next(reading)
    reading.close()

    other = client.links.take(cluster.broker, 5_000)
    client.links.give(other)
    assert first is again is not other
    assert offsets(client.read("broker-a", topic, 0, 0, 1_000)) == list(range(1_000))


def test_threads_read_side_by_side(cluster: LocalCluster, client: Ranges):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 1_000, 300)
    found: list[list[int]] = []

    def read() -> None:
        for _ in range(3):
            found.append(offsets(client.read("broker-a", topic, 0, 0, 1_000, 50 * KIB)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [list(range(1_000))] * 12


def _child(nameserver: str, topic: str, answers: Any) -> None:
    here = ranges(nameserver=nameserver)
    answers.put(len(offsets(here.read("broker-a", topic, 0, 0, 100))))


def test_a_process_has_one_client_for_the_same_settings_and_a_forked_child_its_own(cluster: LocalCluster):
    topic = new_topic(cluster.nameserver)
    fill(cluster, topic, 100)
    one = ranges(nameserver=cluster.nameserver)
    assert ranges(nameserver=cluster.nameserver) is one
    assert ranges(nameserver=cluster.nameserver, retries_max=3) is not one
    assert len(offsets(one.read("broker-a", topic, 0, 0, 100))) == 100

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_child, args=(cluster.nameserver, topic, answers))
    child.start()

    assert answers.get(timeout=30) == 100
    child.join(60)


def test_a_wrong_setting_is_named(cluster: LocalCluster):
    with pytest.raises(SettingError, match="did you mean 'retries_max'"):
        ranges(nameserver=cluster.nameserver, retry_max=3)
