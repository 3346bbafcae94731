"""The state of the slaves, for tools and monitoring; and who waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker.pairs.pair import ALONE
from halfmoon.broker.settings import BrokerRole
from halfmoon.wire.bodies import CopiesState, KVTable, from_json
from halfmoon.wire.headers.admin import GetBrokerHaStatus, GetBrokerRuntimeInfo, SwitchMaster, TakeOver
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.topic import UpdateAndCreateTopic
from tests.broker.copies.slave import Port, master_lease, write_lease
from tests.broker.copies.test_feeding import fill


@pytest.fixture
def port(talk: Any) -> Port:
    """A port with a slave that lacks 100 bytes and, for 250 ms, a message."""
    fill(talk)
    port = Port(talk)
    port.report(port.connect(1), talk.broker.store.end_offset - 100)
    fill(talk, 1)
    talk.now += 250
    return port


def test_the_state_of_copies_is_told_as_rocketmq_5_does(talk: Any, port: Port) -> None:
    end = talk.broker.store.end_offset
    [slave] = (state := from_json(CopiesState, talk.ask(GetBrokerHaStatus()).body)).ha_connection_info
    assert (state.master, state.master_commit_log_max_offset, state.in_sync_slave_nums) == (True, end, 1)
    assert (slave.addr, slave.diff, slave.in_sync, slave.behind_ms) == ("10.0.0.9:4000", end - slave.slave_ack_offset, True, 250)
    assert slave.diff > 1100


def test_slaves_are_monitored(talk: Any, port: Port) -> None:
    samples = {sample[0].name: sample[2] for sample in talk.broker.copies.samples(("b",), talk.instant) if sample}
    assert samples.pop("halfmoon_slave_behind_bytes") > 1100
    assert samples == {"halfmoon_slaves": 1, "halfmoon_slave_behind_seconds": 0.25}


@pytest.mark.parametrize(
    ("settings", "waits"),
    [({}, False), ({"role": BrokerRole.SYNC_MASTER}, True), ({"role": BrokerRole.SYNC_MASTER, "copies_wanted": 1}, False)],
)
def test_replies_wait_for_slaves_of_a_sync_master_that_wants_copies(make_talk: Any, settings: dict[str, Any], waits: bool) -> None:
    talk = make_talk(**settings)
    assert (talk.broker.pending_replies.slaves is not None) is waits


def test_a_sync_master_without_enough_slaves_reports_a_fault(make_talk: Any) -> None:
    def faults() -> str | None:
        return from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table.get("brokerFaults")

    talk = make_talk(role=BrokerRole.SYNC_MASTER)
    assert faults() == "sends are not copied: 0 of 1 slaves are connected and not too far behind"
    port = Port(talk)
    port.report(port.connect(1), talk.broker.store.end_offset)
    assert faults() is None
    port.core.lost(1, talk.instant)
    assert faults() is not None
    talk = make_talk()
    assert faults() is None


# ---------------------------------------------------------------- pairs


@pytest.fixture
def pair(make_talk: Any) -> Any:
    """The master of a pair, which is alone."""
    return make_talk(lease=master_lease)


def told(talk: Any) -> dict[str, str]:
    """Return the runtime information of a broker."""
    return from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table


def lose(talk: Any, port: Port, peer: int) -> None:
    """Let the master lose its follower, and go on without it."""
    port.core.lost(peer, talk.instant)
    talk.now += 1000
    port.turn()
    write_lease(talk.broker.copies.pair.lease, talk.instant.steady)
    port.turn()


def test_a_master_tells_its_epoch_and_who_follows_how_far(pair: Any) -> None:
    port = Port(pair)
    assert told(pair)["pairState"] == "master of epoch 1, alone: no follower is connected"
    assert told(pair)["brokerFaults"] == "the pair is not complete: there is no second copy"
    port.follow(port.connect(1))
    assert told(pair)["pairState"] == "master of epoch 1, complete: 10.0.0.9:4000 follows, 0 bytes and 0.0 s behind"
    assert "brokerFaults" not in told(pair)
    for member, address in (("b" * 32, "10.0.0.9:10911"), ("c" * 32, "10.0.0.9:1"), ("x", "10.0.0.9:2"), ("b" * 32, "no address")):
        assert pair.ask(GetBrokerHaStatus(member=member, member_addr=address)).code == 0
    assert told(pair)["pairState"] == "master of epoch 1, complete: 10.0.0.9:10911 follows, 0 bytes and 0.0 s behind"
    pair.post_send()
    pair.now += 250
    assert told(pair)["pairState"].endswith(" s behind")
    assert ", 0 bytes" not in told(pair)["pairState"]
    lose(pair, port, 1)
    assert told(pair)["pairState"] == "master of epoch 1, alone: no follower is connected"


def test_a_broker_without_a_pair_tells_nothing_of_one(talk: Any) -> None:
    assert "pairState" not in told(talk)


def test_a_problem_of_the_lease_is_a_fault_of_a_complete_pair(pair: Any) -> None:
    port = Port(pair)
    port.follow(port.connect(1))
    pair.broker.copies.problem = "it cannot be written: etcd: no answer"
    assert told(pair)["brokerFaults"] == "the lease of the pair: it cannot be written: etcd: no answer"


def test_a_pair_is_monitored(pair: Any) -> None:
    def samples() -> dict[str, float]:
        found = pair.broker.copies.samples(("b",), pair.instant)
        return {sample[0].name: sample[2] for sample in found if sample[1] == ("b",)}

    port = Port(pair)
    alone = samples()
    assert (alone["halfmoon_pair_complete"], alone["halfmoon_pair_epoch"]) == (0, 1)
    assert alone["halfmoon_lease_valid_seconds"] == 5.4, "6 s, less the margin"
    port.follow(port.connect(1))
    assert samples()["halfmoon_pair_complete"] == 1
    pair.now += 10_000
    assert samples()["halfmoon_lease_valid_seconds"] == 0


def test_only_a_master_whose_follower_is_there_and_has_everything_gives_up_its_role(talk: Any, pair: Any) -> None:
    def refusal(of: Any) -> str | None:
        remark: str | None = of.ask(SwitchMaster()).remark
        return remark

    port = Port(pair)
    assert refusal(talk) == "this broker cannot give up its role: it is not in a pair"
    alone = "the pair is not complete: nobody else has everything; start the follower, and wait until it follows"
    assert refusal(pair) == f"this broker cannot give up its role: {alone}"
    port.follow(port.connect(1))
    port.core.lost(1, pair.instant)
    assert refusal(pair) == "this broker cannot give up its role: the follower is not connected: start it, or look at its log"
    assert not pair.broker.copies.is_switching
    port.follow(port.connect(2))
    pair.broker.copies.pair.lease.problem = "it cannot be written: connection refused"
    assert "the lease cannot be written now (it cannot be written: connection refused), so nobody could" in str(refusal(pair))
    assert not pair.broker.copies.is_switching
    pair.broker.copies.pair.lease.problem = None
    opaque = pair.post(SwitchMaster())
    pair.turn()
    assert pair.answer(opaque) is None, "the program answers"
    assert pair.broker.copies.is_switching
    assert refusal(pair) == "this broker cannot give up its role: it does so already"
    pair.broker.copies.switched("no")
    pair.turn()
    assert pair.answer(opaque).remark == "this broker cannot give up its role: no"
    assert not pair.broker.copies.is_switching


def test_a_master_does_not_take_over(talk: Any) -> None:
    assert talk.ask(TakeOver()).remark == "this broker is the master already"


def test_with_copies_min_2_a_master_that_is_alone_stores_nothing_and_serves_what_it_has(make_talk: Any) -> None:
    talk = make_talk(lease=master_lease, copies_min=2)
    port = Port(talk)
    refused = talk.send()
    assert (refused.code, refused.remark) == (14, f"service not available now: {ALONE}")
    topic = UpdateAndCreateTopic(
        topic="new", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0, order=False,
    )  # fmt: skip
    refused = talk.ask(topic)
    assert (refused.code, refused.remark) == (14, f"service not available now: {ALONE}")
    assert talk.broker.topics.get("new") is None
    assert told(talk)["brokerFaults"] == ALONE

    port.follow(port.connect(1))
    opaque = talk.post_send()
    assert talk.answer(opaque) is None, "the follower does not have it yet"
    port.follow(1)
    talk.turn()
    assert talk.answer(opaque).code == 0
    lose(talk, port, 1)
    assert talk.send().code == 14
    assert talk.pull().code == 0
    assert talk.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=1)).code == 0


def test_with_copies_min_2_what_only_a_lost_follower_could_confirm_is_neither_confirmed_nor_shown(make_talk: Any) -> None:
    talk = make_talk(lease=master_lease, copies_min=2)
    port = Port(talk)
    port.follow(port.connect(1))
    waiting = talk.post_send()
    lose(talk, port, 1)
    talk.turn()
    assert not talk.broker.copies.pair.is_complete
    assert talk.answer(waiting) is None
    assert talk.pull().code == 19
    port.follow(port.connect(2))
    talk.turn()
    assert talk.answer(waiting).code == 0
    assert talk.pull().code == 0


def test_with_copies_min_1_a_master_goes_on_alone(pair: Any) -> None:
    port = Port(pair)
    port.follow(port.connect(1))
    waiting = pair.post_send()
    assert pair.answer(waiting) is None
    lose(pair, port, 1)
    pair.turn()
    assert pair.answer(waiting).code == 0
    assert pair.send().code == 0
