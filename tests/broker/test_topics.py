"""The table of topics as text: whatever changed, it is what the table says."""

from __future__ import annotations

from random import Random

from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.tables import Tables
from halfmoon.broker.topics import PATH, Topics, topic_config
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import (
    RegisterBrokerBody,
    TopicConfigTable,
    decode_register_body,
    encode_register_body,
    from_json,
)


def test_the_text_of_the_table_follows_every_change():
    random, disk = Random(3), SimDisk(Random(1))
    tables = Tables(disk)
    topics = Topics(BrokerSettings(), tables, 1000)
    for now in range(1001, 1400):
        name = f"t{random.randrange(20)}"
        choice = random.random()
        if choice < 0.6:
            topics.put(topic_config(name, random.randrange(1, 9), random.choice([2, 4, 6])), now)
        elif choice < 0.8:
            topics.delete(name, now)
        else:
            topics.set_ordered({f"t{random.randrange(20)}" for _ in range(5)})
        text = topics.text()
        assert text is not None
        assert from_json(TopicConfigTable, text) == topics.table()
        body = RegisterBrokerBody(topics.table())
        assert decode_register_body(encode_register_body(body, table_text=text)) == body
    for work in tables.save_changed():
        work.done(work.run(), 2000)
    assert from_json(TopicConfigTable, disk.read(PATH) or b"") == topics.table()


def test_a_broker_that_announces_less_has_no_text_for_it():
    topics = Topics(BrokerSettings(permission=4), Tables(SimDisk(Random(1))), 1000)
    assert topics.text() is None


def test_a_topic_keeps_its_birth_until_it_is_deleted():
    disk = SimDisk(Random(1))
    tables = Tables(disk)
    topics = Topics(BrokerSettings(), tables, 1000)
    first = topics.put(topic_config("orders", 4), 2000)
    changed = topics.put(topic_config("orders", 8), 3000)
    for work in tables.save_changed():
        work.done(work.run(), 4000)
    again = Topics(BrokerSettings(), Tables(disk), 5000)
    assert (first.birth_ms, changed.birth_ms, again.existing("orders").birth_ms) == (2000, 2000, 2000)

    again.delete("orders", 6000)
    assert again.put(topic_config("orders", 4), 7000).birth_ms == 7000


def test_a_topic_that_is_found_on_the_disk_alone_has_no_birth_for_it_may_have_told_another_one():
    topics = Topics(BrokerSettings(), Tables(SimDisk(Random(1))), 1000)

    topics.adopt({"orders": 2}, 2000)

    assert topics.existing("orders").birth_ms is None


def test_a_directory_of_a_broker_of_another_name_is_said_once_with_that_name(caplog):
    disk = SimDisk(Random(1))
    for name, said in (("shop-1", False), ("shop-1", False), ("broker-a", True), ("broker-a", False)):
        caplog.clear()
        tables = Tables(disk)
        topics = Topics(BrokerSettings(name=name), tables, 1000)
        topics.put(topic_config("orders", 1), 1001)
        for work in tables.save_changed():
            work.done(work.run(), 2000)
        text = "the directory is that of broker shop-1, and starts as broker-a: clients see other queues; give --broker-name shop-1"
        assert (text in caplog.text) == said == bool(caplog.text)
