"""What keeps log files: nothing that is over, and nothing that could make way where the disk needs their room."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.ports import DiskUsage
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies.batches import ONE_RUN
from halfmoon.wire.headers.delay import RecallMessage
from halfmoon.wire.headers.send import SendMessageReply
from tests.broker.batch import Driver
from tests.broker.half import CHECKS, COMMIT, ROLLBACK, end, prepare
from tests.broker.talk import START_MS

HOUR = 3_600_000
FILE = 64 * 1024
STORE = {"commit_log_file_bytes": FILE, "transaction_file_records": 256}
SETTINGS = {**CHECKS, "batch_retention_ms": 60_000, "batch_timeout_ms": 20_000}
TRANSACTIONS, DELAYED, BATCHES = "transactions", "delayed messages", "batch transactions"


def half(decision):
    def begin(talk):
        sent = prepare(talk)
        return lambda: end(talk, sent, decision)

    return TRANSACTIONS, begin


def delay(properties):
    def begin(talk):
        talk.send("orders", b"later", properties=properties)
        return lambda: talk.wait(10_000)

    return DELAYED, begin


def recalled(talk):
    reply = talk.send("orders", b"never", properties=f"UNIQ_KEY\x01u\x02TIMER_DELIVER_MS\x01{talk.now + HOUR}\x02")
    handle = reply.header(SendMessageReply).recall_handle
    return lambda: talk.ask(RecallMessage(producer_group="P", topic="orders", recall_handle=handle))


def applied(talk):
    driver = Driver(talk, id=f"{ONE_RUN}1")
    driver.stored(0, "a", "one")
    driver.vote(0, "a")

    def finish():
        driver.decide(0, "a")
        driver.apply(0, "a")
        talk.wait(10 * 60_000)

    return finish


def abandoned(talk):
    Driver(talk, id=f"{ONE_RUN}1").stored(0, "a", "one")
    return lambda: talk.wait(10 * 60_000)


USES = {
    "committed": half(COMMIT),
    "rolled back": half(ROLLBACK),
    "level": delay("DELAY\x012\x02"),
    "timer": delay(f"TIMER_DELIVER_MS\x01{START_MS + 5000}\x02"),
    "recalled": (DELAYED, recalled),
    "applied": (BATCHES, applied),
    "abandoned": (BATCHES, abandoned),
}
"""What keeps log files while it goes on: its pin, and a function that begins it and returns one that ends it."""


def pins(talk):
    return {pin.what: pin for pin in talk.broker.store.maintenance.pins}


def fill(talk, files=3):
    """Send messages until so many more log files are there."""
    until = talk.broker.store.end_offset + files * FILE
    while talk.broker.store.end_offset < until:
        talk.send("orders", bytes(30_000))
        talk.wait(100)


def test_every_pin_is_walked_over_here(talk):
    assert set(pins(talk)) == {what for what, _ in USES.values()}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("name", USES)
def test_once_nothing_is_there_that_needs_the_log_the_pin_follows_its_end(make_talk, name, restarts):
    what, begin = USES[name]
    talk = make_talk(disk=SimDisk(Random(1)), store=STORE, **SETTINGS)
    talk.send("orders")
    finish = begin(talk)
    assert pins(talk)[what].needed_from() < talk.broker.store.end_offset
    finish()
    talk.wait(100)
    if restarts:
        talk.restart()
    for _ in range(2):
        talk.send("orders", b"others go on")
        assert pins(talk)[what].needed_from() == talk.broker.store.end_offset


@pytest.mark.parametrize("percent", [86, 95])
@pytest.mark.parametrize("name", USES)
def test_where_the_disk_needs_room_every_pin_makes_way(make_talk, name, percent):
    """Whether what needs the log is over or not: the broker takes writes again within minutes, also after a restart."""
    _, begin = USES[name]
    talk = make_talk(disk=SimDisk(Random(1)), store=STORE, **SETTINGS)
    talk.send("orders")
    begin(talk)
    fill(talk)
    talk.disk.usage = lambda: DiskUsage(100, 100 - percent)
    talk.wait(5 * 60_000)
    assert talk.broker.store.min_offset >= 2 * FILE


@pytest.mark.parametrize("restarts", [False, True])
def test_a_disk_that_was_full_takes_writes_again_while_an_id_is_known(make_talk, restarts):
    """Its files go for the ids that are known by name, as for others: what is known of them is written anew where it may stay."""
    talk = make_talk(disk=SimDisk(Random(1)), store=STORE, **SETTINGS)
    talk.send("orders")
    driver = Driver(talk)
    driver.whole(0, "one", attempt="a")
    fill(talk)
    talk.disk.usage = lambda: DiskUsage(100, 5 if talk.broker.store.min_offset == 0 else 50)
    talk.wait(20_000)
    assert talk.send("orders").code == 14
    if restarts:
        talk.restart()
    talk.wait(3 * 60_000)
    assert talk.send("orders", peer=2).code == 0
    talk.restart()
    assert driver.stored(0, "again", "one") == "DECIDED"
