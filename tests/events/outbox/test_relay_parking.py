"""Rows of the outbox that are not sent any more: what can never succeed at once, other failures in the end, outages never."""

from __future__ import annotations

import itertools
import logging

import pytest

from halfmoon.errors import (
    ConnectFailed,
    ConnectionLost,
    MessageIllegal,
    MessageRefused,
    NoPermission,
    NoRoute,
    SendFailed,
    ServiceNotAvailable,
    SystemError_,
)
from halfmoon.events.outbox.claims import PARKED_MS, error_text
from halfmoon.events.outbox.relay import Relay, RelaySettings
from halfmoon.events.outbox.status import retry
from tests.events.outbox.outboxes import Looked
from tests.events.outbox.test_relay import Wire
from tests.waiting import until


def test_a_row_is_parked_after_a_bounded_number_of_attempts_and_sent_when_somebody_asks(sqlite_outbox):
    outbox, broken, looked = sqlite_outbox, [True], Looked(sqlite_outbox)
    wire = Wire(lambda message: SystemError_("not yet") if broken[0] and message.msg_id == "A" else None)
    outbox.put("A", "next", key="o-1")
    outbox.tell(f"UPDATE halfmoon_outbox SET attempts = {RelaySettings().attempts_max - 1} WHERE event_id = 'A'")
    with Relay(looked, wire, poll_ms=20) as relay:
        until(lambda: relay.figures().parked and wire.ids == ["next"])
        looked.until_more(5)
        assert [one.msg_id for one in wire.tried] == ["A", "next"]
        assert relay.backlog().failed == 1
        assert outbox.ask("SELECT next_ms FROM halfmoon_outbox") == [(PARKED_MS,)]  # no time comes at which it is due
        broken[0] = False
        assert retry(outbox.provider) == 1
        until(lambda: outbox.ids == [])

    assert wire.ids == ["next", "A"]


def test_a_row_that_holds_no_message_is_put_aside_at_once(sqlite_outbox):
    outbox, wire = sqlite_outbox, Wire()
    outbox.put("A", "B")
    outbox.tell("UPDATE halfmoon_outbox SET message = x'00' WHERE event_id = 'A'")

    with Relay(outbox.provider, wire, poll_ms=20) as relay:
        until(lambda: outbox.ids == ["A"])
        assert relay.backlog().failed == 1

    assert wire.ids == ["B"]


@pytest.mark.parametrize(
    "refusal",
    [
        MessageIllegal("the name is none"),
        MessageRefused("too large"),
        NoPermission("the topic[TP_ORDER] sending message is forbidden"),
        SendFailed("TP_ORDER", ["a", "b"], 3, 16, NoPermission("Sending message to topic[TP_ORDER] is forbidden.")),
    ],
    ids=lambda one: f"{type(one).__name__}-{one}"[:40],
)
def test_a_row_that_can_never_be_sent_is_parked_at_once_and_its_key_goes_on(sqlite_outbox, caplog, refusal):
    outbox = sqlite_outbox
    wire = Wire(lambda message: refusal if message.msg_id == "poison" else None)
    outbox.put("poison", "next", key="o-1")
    with caplog.at_level(logging.WARNING, "halfmoon.events"), Relay(outbox.provider, wire, poll_ms=20) as relay:
        until(lambda: wire.ids == ["next"])
        until(lambda: relay.backlog().failed == 1)
        assert relay.figures().closed == {}

    [(attempts, error)] = outbox.ask("SELECT attempts, error FROM halfmoon_outbox")
    assert (attempts, error) == (1, error_text(refusal))
    (said,) = [one for one in caplog.messages if "is parked" in one]
    assert "later events of its key go on without it" in said
    assert "event=poison" in said
    assert error in said


@pytest.mark.parametrize(
    "outage",
    [
        ConnectFailed("gone"),
        NoRoute("TP_ORDER"),
        ServiceNotAvailable("full"),
        NoPermission("the broker[a] sending message is forbidden"),
    ],
)
def test_an_outage_parks_nothing_however_often_it_is_met(sqlite_outbox, outage):
    outbox, down = sqlite_outbox, [True]
    wire = Wire(lambda message: outage if down[0] else None)
    outbox.put("A")
    outbox.tell("UPDATE halfmoon_outbox SET attempts = 1000")
    with Relay(outbox.provider, wire, poll_ms=20) as relay:
        until(lambda: relay.figures().failed >= 2)
        assert relay.backlog().failed == 0
        down[0] = False
        until(lambda: outbox.ids == [])


def test_a_row_that_breaks_its_way_does_not_keep_its_topic_closed_and_is_parked_in_the_end(sqlite_outbox):
    """Its connection is cut each time: another row goes ahead then, and its failures beside rows that come through count."""
    outbox = sqlite_outbox
    wire = Wire(lambda message: ConnectionLost("cut") if message.msg_id == "poison" else None)
    outbox.put("poison", "after", key="o-1")
    with Relay(outbox.provider, wire, poll_ms=20, attempts_max=2) as relay:
        until(lambda: relay.figures().failed)
        for number in itertools.count():
            outbox.put(f"other{number}")
            until(lambda name=f"other{number}": name in wire.ids, within_s=15)
            if relay.backlog().failed:
                break
        until(lambda: "after" in wire.ids)

    assert outbox.ids == ["poison"]
