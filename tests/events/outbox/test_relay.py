"""The relay, with real databases and real brokers: everything committed is sent, in order, whoever fails in between."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from halfmoon.errors import BrokerError, ConnectFailed, NotRunning, SettingError
from halfmoon.events import Publisher
from halfmoon.events.databases.database import Busy
from halfmoon.events.outbox.claims import Claim, claim
from halfmoon.events.outbox.relay import Relay, RelaySettings
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.model import LocalTransactionState, MessageQueue, SendResult, SendStatus
from tests.events.outbox.outboxes import Looked, Outbox
from tests.events.outbox.reader import Reader
from tests.waiting import until


class Wire:
    """A transport that notes what it is given, and fails as it is told: ``fails(message)`` returns an error or None.

    What it sends has message ids that begin with ``broker-``.
    """

    def __init__(self, fails=lambda message: None):
        self.fails, self.got, self.tried = fails, [], []

    def post(self, message, told, *, timeout_ms):
        self.tried.append(message)
        if (error := self.fails(message)) is not None:
            threading.Thread(target=told, args=(None, error)).start()
            return
        self.got.append(message)
        queue = MessageQueue(message.topic, "b", 0)
        result = SendResult(SendStatus.SEND_OK, message.msg_id, f"broker-{message.msg_id}", queue, len(self.got))
        threading.Thread(target=told, args=(result, None)).start()

    @property
    def ids(self):
        return [one.msg_id for one in self.got]


@pytest.fixture
def transport(cluster):
    found = ClientTransport("P_relay", cluster.nameserver)
    found.start(lambda stored: LocalTransactionState.UNKNOWN)
    yield found
    found.close(1_000)


# ---------------------------------------------------------------- to a broker


@pytest.mark.slow
def test_two_relays_side_by_side_send_everything_once_and_keep_the_order_of_each_key(postgres_url, cluster, transport):
    outbox, topic = Outbox(postgres_url), "TP_TWO"
    for at in range(60):
        outbox.put(f"a{at:02}", topic=topic, key="a")
        outbox.put(f"b{at:02}", topic=topic, key="b")
        outbox.put(*(f"x{at:02}-{each}" for each in range(5)), topic=topic)
    order, lock = [], threading.Lock()
    post = transport.post

    def noted(message, told, *, timeout_ms):
        with lock:
            order.append(message.msg_id)
        post(message, told, timeout_ms=timeout_ms)

    transport.post = noted
    with Reader(cluster, topic, "S_two") as reader:
        relays = [Relay(outbox.provider, transport, poll_ms=20, batch_max=20) for _ in range(2)]
        for one in relays:
            one.start()
        until(lambda: len(reader.ids) >= 420)
        until(lambda: outbox.ids == [])
        assert all(one.close() for one in relays)
    outbox.close()

    assert len(reader.ids) == len(set(reader.ids)) == 420
    assert all(one.figures().sent > 20 for one in relays), "both took part"
    for key in "ab":
        assert [one for one in order if one[0] == key] == [f"{key}{at:02}" for at in range(60)]
        mine = [one for one in reader.messages if one.msg_id[0] == key]
        assert len({one.queue_id for one in mine}) == 1, "events of one key lie in one queue"
        assert [one.msg_id for one in sorted(mine, key=lambda one: one.queue_offset)] == [f"{key}{at:02}" for at in range(60)]


# ---------------------------------------------------------------- failures


def test_a_row_that_fails_waits_longer_each_time_and_the_others_go_on(sqlite_outbox):
    outbox = sqlite_outbox
    wire = Wire(lambda message: BrokerError("what is this", code=77) if message.msg_id == "bad" else None)
    with Relay(outbox.provider, wire, poll_ms=20) as relay:
        outbox.put("bad", "A", "B")
        until(lambda: relay.figures().failed >= 2)
        outbox.put("C")
        until(lambda: outbox.ids == ["bad"])
        [(attempts, error, next_ms)] = outbox.ask("SELECT attempts, error, next_ms FROM halfmoon_outbox")

    assert sorted(wire.ids) == ["A", "B", "C"]
    assert attempts >= 2
    assert error == "BrokerError: CODE: 77  DESC: what is this"
    assert next_ms / 1000 - time.time() < 10
    tries = [one.attempt for one in wire.tried if one.msg_id == "bad"]
    assert tries == list(range(1, len(tries) + 1)), "a repeat says so, so that brokers can merge it"


def test_a_topic_that_cannot_be_reached_holds_no_other_back(sqlite_outbox):
    outbox = sqlite_outbox
    wire = Wire(lambda message: ConnectFailed("gone") if message.topic == "TP_GONE" else None)
    outbox.put(*(f"gone{at}" for at in range(100)), topic="TP_GONE")
    with Relay(outbox.provider, wire, poll_ms=20, batch_max=10, in_flight_max=5) as relay:
        until(lambda: relay.figures().closed)
        outbox.put("A", "B")
        until(lambda: len(wire.got) == 2)
        assert list(relay.figures().closed) == ["TP_GONE"]
        assert "ConnectFailed: gone" in relay.figures().closed["TP_GONE"]

    assert len(wire.tried) < 40


def test_locks_that_others_hold_for_a_moment_are_nothing_to_warn_of(sqlite_outbox, caplog):
    outbox, wire = sqlite_outbox, Wire()

    class Often:
        dialect, left = "sqlite", 2

        def fresh(self, *, lock_wait_ms=1_000):
            if self.left:
                self.left -= 1
                raise Busy("database is locked")
            return outbox.provider.fresh(lock_wait_ms=lock_wait_ms)

    outbox.put("A")
    with Relay(Often(), wire, poll_ms=20), caplog.at_level(logging.WARNING, "halfmoon.events"):
        until(lambda: outbox.ids == [])

    assert (wire.ids, caplog.records) == (["A"], [])


def test_what_was_committed_before_a_close_is_sent_though_the_relay_was_just_looking(sqlite_outbox):
    outbox, wire, looked, go_on = sqlite_outbox, Wire(), threading.Event(), threading.Event()

    class Looking:
        dialect = "sqlite"

        @contextmanager
        def fresh(self, **options):
            with outbox.provider.fresh(**options) as rows:
                yield rows
            looked.set()
            go_on.wait(10)

    relay = Relay(Looking(), wire, poll_ms=20)
    relay.start()
    looked.wait(10)
    outbox.put("A")
    closing = threading.Thread(target=relay.close)
    closing.start()
    with pytest.raises(NotRunning):
        until(lambda: relay.start())
    go_on.set()
    closing.join()
    assert (wire.ids, outbox.ids) == (["A"], [])


@pytest.mark.slow
def test_a_relay_with_nothing_to_do_waits_for_no_writer(sqlite_outbox, caplog):
    outbox, wire, looked = sqlite_outbox, Wire(), Looked(sqlite_outbox)
    with (
        outbox.engine.begin() as connection,
        Relay(looked, wire, poll_ms=20) as relay,
        caplog.at_level(logging.WARNING, "halfmoon.events"),
    ):
        outbox.add(connection, "A")
        looked.until_more(5)
        assert relay.figures().error == ""
    assert (caplog.records, outbox.ids) == ([], ["A"])


def test_a_database_that_fails_between_sending_and_removing_is_waited_for_and_said_once(postgres_url, caplog):
    outbox = Outbox(postgres_url)
    wire, looked = Wire(), Looked(outbox)

    def fails(message):
        if message.msg_id == "A" and not message.attempt > 1:
            outbox.tell("ALTER TABLE halfmoon_outbox RENAME TO elsewhere")

    wire.fails = fails
    with Relay(looked, wire, poll_ms=20) as relay, caplog.at_level(logging.WARNING, "halfmoon.events"):
        outbox.put("A")
        until(lambda: relay.figures().error)
        looked.until_more(1)
        outbox.tell("ALTER TABLE elsewhere RENAME TO halfmoon_outbox")
        outbox.put("B")
        until(lambda: outbox.ids == [])
        until(lambda: relay.figures().error == "")
    outbox.close()

    assert wire.ids == ["A", "B"], "what was sent is remembered, and removed later"
    assert sum("the outbox cannot be read" in text for text in caplog.messages) == 1
    assert outbox.engine.url.password not in caplog.text


# ---------------------------------------------------------------- life


def test_the_relay_looks_by_itself_and_at_once_when_it_is_nudged(sqlite_outbox):
    outbox, wire, looked = sqlite_outbox, Wire(), Looked(sqlite_outbox)
    with Relay(looked, wire, poll_ms=60_000) as relay:
        until(lambda: looked.looks == 1)
        outbox.put("A")
        time.sleep(0.3)
        assert wire.ids == []
        relay.wake()
        until(lambda: wire.ids == ["A"])
    with Relay(outbox.provider, wire, poll_ms=50):
        outbox.put("B")
        until(lambda: wire.ids == ["A", "B"])


def test_closing_sends_what_is_there_and_what_is_left_stays_for_another(sqlite_outbox):
    outbox, wire = sqlite_outbox, Wire()
    relay = Relay(outbox.provider, wire, poll_ms=60_000, batch_max=10)
    relay.start()
    outbox.put(*(f"E{at}" for at in range(100)))

    assert relay.close()
    assert (len(wire.got), outbox.ids) == (100, [])
    assert not relay.figures().running
    with pytest.raises(NotRunning):
        relay.start()


def test_a_publisher_with_an_outbox_and_no_broker_ends_in_the_time_it_is_given(sqlite_outbox):
    outbox = sqlite_outbox
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections and answers nothing
        events = Publisher("P_deaf", f"127.0.0.1:{deaf.getsockname()[1]}", provider=outbox.provider, mode="outbox")
        events.start()
        outbox.put("A")
        until(lambda: events._relay.figures().in_hand)
        begun = time.monotonic()
        events.close(flush_ms=500)
        took_s = time.monotonic() - begun

    assert outbox.ids == ["A"]
    assert took_s < 2.5


def test_a_relay_that_was_never_started_closes(sqlite_outbox):
    assert Relay(sqlite_outbox.provider, Wire()).close(0)


def test_rows_of_a_relay_that_vanished_are_sent_as_repeats_when_its_claims_end(sqlite_outbox):
    outbox, wire, looked = sqlite_outbox, Wire(), Looked(sqlite_outbox)
    outbox.put("A", "B")
    now = time.time_ns() // 1_000_000
    with outbox.provider.fresh() as rows:
        assert len(claim(rows, Claim("dead", now, now + 3_600_000), count_max=10, bytes_max=10**6)) == 2

    with Relay(looked, wire, poll_ms=20):
        looked.until_more(5)
        assert wire.ids == []
        outbox.tell(f"UPDATE halfmoon_outbox SET claimed_until_ms = {now - 1}")  # as when the hour is over
        until(lambda: outbox.ids == [])

    assert sorted(wire.ids) == ["A", "B"]
    assert {one.attempt for one in wire.got} == {2}


@pytest.mark.slow
def test_a_relay_whose_machine_has_a_wrong_clock_claims_by_that_of_the_database(postgres_url, monkeypatch):
    outbox, until_ms, refusals = Outbox(postgres_url), [], [ConnectFailed("no")]

    def looks(message):
        until_ms.extend(one for (one,) in outbox.ask("SELECT claimed_until_ms FROM halfmoon_outbox"))
        return refusals.pop() if refusals else None

    outbox.put("A")
    monkeypatch.setattr(time, "time_ns", lambda: 10**19)
    with Relay(outbox.provider, Wire(looks), poll_ms=20) as relay:
        until(lambda: outbox.ids == [])
    assert relay.backlog().backlog == 0

    (now_ms,) = outbox.ask("SELECT EXTRACT(EPOCH FROM now()) * 1000")[0]
    assert all(abs(float(now_ms) + relay.settings.claim_ms - one) < 60_000 for one in until_ms)
    assert len(until_ms) == 2
    outbox.close()


def test_what_a_relay_holds_in_memory_is_bounded_by_bytes(sqlite_outbox):
    outbox, most = sqlite_outbox, []
    wire = Wire(lambda message: most.append(relay.figures().in_hand))
    relay = Relay(outbox.provider, wire, poll_ms=20, batch_bytes_max=300_000)
    outbox.put(*(f"E{at}" for at in range(20)), body=b"x" * 100_000)

    with relay:
        until(lambda: outbox.ids == [])

    assert max(most) == 2


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "settings",
    [
        {"poll_ms": 0},
        {"batch_max": 0},
        {"batch_max": True},
        {"claim_ms": 3_000},
        {"attempts_max": 0},
        {"timeout_ms": "3"},
        {"pol": 1},
    ],
)
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        Relay(None, None, **settings)


def test_a_relay_without_settings_has_those_that_are_documented():
    assert Relay(None, None).settings == RelaySettings()
