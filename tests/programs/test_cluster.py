"""Several brokers in one process: names, ports, directories; and a directory that holds another number of stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, Message
from halfmoon.errors import StoreLocked, UsageError
from halfmoon.programs.cluster import PORT_STEP, cluster
from halfmoon.programs.embedded import kill, start, stop
from halfmoon.programs.ports import PortTaken
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.layout import LOCK
from tests.programs.test_embedded import settings
from tests.programs.test_ports import pair_of_ports


def named(name):
    found = settings()
    return found._replace(broker=replace(found.broker, name=name))


async def run(data, count):
    """Start a cluster, send each broker messages, and stop it."""
    programs = await cluster(settings(), data, count)
    await start(programs)
    try:
        async with AsyncAdmin(nameserver=programs[0].address) as admin:
            await admin.create_topic("orders", queue_count=1)
        async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
            for number in range(2 * count):
                await producer.send(Message("orders", b"%d" % number))
    finally:
        await stop(programs)


async def topics_of(programs):
    """Return how many messages of orders each broker has."""
    async with AsyncAdmin(nameserver=programs[0].address) as admin:
        ends = await admin.topic_stats("orders")
    counts = {}
    for queue, end in ends.items():
        counts[queue.broker_name] = counts.get(queue.broker_name, 0) + end.max_offset - end.min_offset
    return counts


@pytest.mark.parametrize(
    ("name", "names"),
    [("broker-a", ["broker-a", "broker-b", "broker-c"]), ("shop", ["shop-a", "shop-b", "shop-c"])],
)
async def test_brokers_are_called_in_turn_and_share_a_topics_messages_that_are_there_after_the_next_start(tmp_path, name, names):
    programs = await cluster(named(name), tmp_path, 3)
    await start(programs)
    try:
        async with AsyncAdmin(nameserver=programs[0].address) as admin:
            await admin.create_topic("orders", queue_count=1)
        async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
            for number in range(30):
                await producer.send(Message("orders", b"%d" % number))
        sent = await topics_of(programs)
    finally:
        await stop(programs)
    assert sorted(sent) == names
    assert sum(sent.values()) == 30
    assert min(sent.values()) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker-1", "broker-2", "broker-3", "nameserver"]

    programs = await cluster(named(name), tmp_path, 3)
    await start(programs)
    try:
        assert await topics_of(programs) == sent
    finally:
        await stop(programs)


async def test_ports_are_ten_apart_and_given_back_when_one_is_taken(tmp_path):
    port, _ = pair_of_ports()
    found = settings()
    found = found._replace(broker=replace(found.broker, port=port))
    programs = await cluster(found, tmp_path, 2)
    await start(programs)
    try:
        assert [program.port for program in programs[1:]] == [port, port + PORT_STEP]
        other = found._replace(broker=replace(found.broker, port=port - PORT_STEP))
        with pytest.raises(PortTaken):
            await cluster(other, tmp_path / "other", 2)
        RealDisk(tmp_path / "other" / "broker-1").lock(LOCK).release()
    finally:
        await kill(programs)


@pytest.mark.parametrize(("first", "then", "words"), [(1, 3, "the store of one broker"), (2, 1, "holds the stores of 2 brokers")])
async def test_a_directory_of_another_number_of_stores_is_refused_and_the_way_out_said(tmp_path, first, then, words):
    await run(tmp_path, first)
    with pytest.raises(UsageError, match=f"{words}.*(--brokers 2|another --data)"):
        await cluster(settings(), tmp_path, then)


async def test_brokers_that_stay_out_are_named(tmp_path, caplog):
    await run(tmp_path, 3)
    await run(tmp_path, 2)
    assert "left out, with their messages: broker-3" in caplog.text


async def test_a_store_that_is_in_use_leaves_nothing_running(tmp_path):
    lock = RealDisk(tmp_path / "broker-2").lock(LOCK)
    with pytest.raises(StoreLocked):
        await cluster(settings(), tmp_path, 2)
    lock.release()
    await run(tmp_path, 2)
