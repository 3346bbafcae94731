"""The second phase: what the broker is told, which broker, and what happens when it cannot be told."""

from __future__ import annotations

import pytest

from halfmoon.client.core.produce import transaction
from halfmoon.client.core.produce.attempts import PAUSE_MS_MAX
from halfmoon.client.core.produce.transaction import TOLD_AGAIN_MS, OpenHalf
from halfmoon.errors import NotRunning
from halfmoon.model import Message, SendStatus
from halfmoon.wire.bodies import BrokerData, QueueData, TopicRouteData, to_json
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction
from tests.client.scripted import REFUSED, Reply, Scripted
from tests.client.transacting import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Shop,
    ends,
    transactions,
)

ORDER = Message("orders", b"paid")
TWO = {"broker-a": 1, "broker-b": 1}


@pytest.mark.mission("000-63", "000-64", "000-68", "004-17")
def test_the_second_phase_carries_every_field_of_the_half_message():
    script = Scripted()
    core = transactions(script, Shop())

    result = script.run(core.send(ORDER))

    (end,) = ends(script)
    assert end.oneway
    assert end.timeout_ms == 3_000
    assert end.remark is None
    assert end.fields == {
        "producerGroup": "P", "tranStateTableOffset": "5", "commitLogOffset": "4096", "commitOrRollback": "8",
        "msgId": result.msg_id, "transactionId": "TX", "fromTransactionCheck": "false", "topic": "orders", "bname": "broker-a",
    }  # fmt: skip


@pytest.mark.mission("000-63")
def test_without_the_brokers_id_the_offset_comes_from_the_message_id():
    script = Scripted()
    core = transactions(script, Shop())

    def with_an_offset_as_id():
        stored = yield from OpenHalf(core, ORDER).store()
        stored.result.offset_msg_id, stored.result.msg_id = "", "7F00000100002A9F0000000000002000"
        yield from stored.decide(COMMIT)

    script.run(with_an_offset_as_id())

    assert ends(script)[0].request.commit_log_offset == 0x2000


@pytest.mark.mission("000-65")
@pytest.mark.parametrize(("said", "number"), [(COMMIT, 8), (ROLLBACK, 12), (UNKNOWN, 0)])
def test_each_state_has_its_number_on_the_wire(said, number):
    script = Scripted()
    core = transactions(script, Shop(said))

    script.run(core.send(ORDER))

    assert ends(script)[0].fields["commitOrRollback"] == str(number)


@pytest.mark.mission("000-66")
def test_the_second_phase_goes_to_the_broker_that_stored_the_half_message():
    script = Scripted()
    core = transactions(script, Shop(), TWO)

    for _ in range(4):
        script.run(core.send(ORDER))

    halves = [seen.address for seen in script.asked(SendMessageV2)]
    assert set(halves) == {"broker-a:1", "broker-b:1"}
    assert [end.address for end in ends(script)] == halves


@pytest.mark.mission("000-66")
def test_a_broker_that_left_the_route_is_told_at_the_address_in_the_brokers_id():
    script = Scripted()
    core = transactions(script, Shop())

    script.run(core.send(ORDER, None, lambda message, arg: core.instance.routes.brokers.clear() or COMMIT))

    assert ends(script)[0].address == "127.0.0.1:10911"


@pytest.mark.mission("000-20")
@pytest.mark.parametrize("error", [REFUSED, NotRunning("closed"), OSError("broken")])
def test_a_second_phase_that_fails_is_logged_and_never_raised(error, caplog):
    script = Scripted()
    core = transactions(script, Shop())
    script.on(EndTransaction, error)

    result = script.run(core.send(ORDER))

    assert len(ends(script)) == 1, "it was attempted"
    assert (result.status, result.local_state) == (SendStatus.SEND_OK, COMMIT)
    assert "second phase not sent" in caplog.text


@pytest.mark.mission("000-20")
@pytest.mark.parametrize("said", [COMMIT, ROLLBACK, UNKNOWN, None, ValueError("x"), "nonsense"])
def test_a_second_phase_is_attempted_whatever_the_local_transaction_says(said):
    script = Scripted()
    core = transactions(script, Shop(said))

    script.run(core.send(ORDER))

    assert len(ends(script)) == 1


def test_an_answer_with_a_broken_id_costs_the_second_phase_only(caplog):
    script = Scripted()
    core = transactions(script, Shop())
    script.on(SendMessageV2, Reply(header=SendMessageReply(msg_id="nonsense", queue_id=0, queue_offset=5)))

    result = script.run(core.send(ORDER))

    assert result.local_state is COMMIT
    assert ends(script) == []
    assert "second phase not sent" in caplog.text


def with_member(*members: str) -> Reply:
    """Return the route of ``orders``: the addresses of broker-a, its master first."""
    brokers = [BrokerData("c", "broker-a", dict(enumerate(members)))]
    return Reply(body=to_json(TopicRouteData(brokers, [QueueData("broker-a", 1, 1, 6)])))


@pytest.mark.parametrize("said", [COMMIT, ROLLBACK])
def test_a_decision_whose_master_was_killed_goes_to_the_next_master_in_the_background(said, caplog):
    script = Scripted()
    core = transactions(script, Shop(said))
    taken_over = script.now + 7_000
    script.on(
        GetRouteinfoByTopic,
        lambda seen: with_member("second:1") if script.now >= taken_over else with_member("first:1", "second:1"),
    )
    script.on(EndTransaction, lambda seen: REFUSED if seen.address == "first:1" else Reply())

    script.run(core.send(ORDER))

    assert script.now < taken_over, "nobody waits for it"
    script.run_for(8_000)
    assert ends(script)[-1].address == "second:1"
    assert [end.address for end in ends(script)].count("second:1") == 1
    assert len(ends(script)) <= 20
    assert ends(script)[-1].fields == ends(script)[0].fields
    assert "the broker will ask" not in caplog.text


def test_a_decision_without_a_next_master_is_given_up_after_a_while(caplog):
    script = Scripted()
    core = transactions(script, Shop())
    script.on(GetRouteinfoByTopic, with_member("first:1", "second:1"))
    script.on(EndTransaction, REFUSED)

    script.run(core.send(ORDER))
    script.run_for(TOLD_AGAIN_MS + 2_000)

    assert "the broker will ask" in caplog.text
    made = len(ends(script))
    script.run_for(60_000)
    assert len(ends(script)) == made <= TOLD_AGAIN_MS // PAUSE_MS_MAX + 5


@pytest.mark.parametrize("way", ["no decision", "too many"])
def test_a_second_phase_is_not_sent_again_without_a_decision_or_beside_too_many_others(way, caplog, monkeypatch):
    if way == "too many":
        monkeypatch.setattr(transaction, "TOLD_AGAIN_MAX", 0)
    script = Scripted()
    core = transactions(script, Shop(UNKNOWN if way == "no decision" else COMMIT))
    script.on(GetRouteinfoByTopic, with_member("first:1", "second:1"))
    script.on(EndTransaction, REFUSED)

    script.run(core.send(ORDER))
    script.run_for(5_000)

    assert len(ends(script)) == 1
    assert "the broker will ask" in caplog.text
