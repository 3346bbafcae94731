"""Heartbeats: groups and retry topics made, members told of changes at once, and who may ask."""

from halfmoon.effects import Write
from halfmoon.instant import LONG_AGO
from halfmoon.model import subscription
from halfmoon.wire.bodies import (
    CheckClientBody,
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    ProducerConnection,
    ProducerData,
    ProducerTable,
    SubscriptionData,
    from_json,
    to_json,
)
from halfmoon.wire.command import encode, reply_command
from halfmoon.wire.headers.client import (
    CheckClientConfig,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    GetConsumerRunningInfo,
    GetProducerConnectionList,
    HeartBeat,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from tests.broker.half import GROUP, checks, prepare
from tests.broker.talk import pull_header


def notices(talk, peer):
    found = [command for command in talk.received.get(peer, []) if command.code == 40 and not command.is_response]
    for command in found:
        talk.received[peer].remove(command)
    return [command.header(NotifyConsumerIdsChanged).consumer_group for command in found]


def heartbeat(client_id, group="G"):
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=[ConsumerData(group_name=group, subscription_data_set=[SubscriptionData.of(subscription("T"))])],
    )


def test_a_heartbeat_makes_the_group_and_its_retry_topic(talk):
    assert talk.consume("T", group="G").code == 0

    assert talk.broker.groups.get("G").retry_max_times == 16
    config = talk.broker.topics.get("%RETRY%G")
    assert (config.read_queue_nums, config.perm) == (1, 6)


def test_nobody_is_told_where_the_broker_shall_not_notify(make_talk):
    talk = make_talk(notify_members=False)
    talk.consume("T", peer=1)
    talk.consume("T", peer=2)
    assert (notices(talk, 1), notices(talk, 2)) == ([], [])


def test_every_member_is_told_at_once_when_the_group_changes(talk):
    talk.consume("T", peer=1)
    assert notices(talk, 1) == ["G"]

    talk.consume("T", peer=2)
    assert (notices(talk, 1), notices(talk, 2)) == (["G"], ["G"])
    talk.consume("T", peer=2)
    assert (notices(talk, 1), notices(talk, 2)) == ([], [])


def writes(talk):
    """Let one round of effects leave; return to whom something was written."""
    return [effect.peer for effect in talk.broker.effects() if isinstance(effect, Write)]


def test_many_members_are_told_over_several_turns_and_who_waits_is_told_of_several_changes_at_once(talk):
    talk.broker.membership.notices_a_turn = 4
    for peer in range(1, 13):
        talk.consume("T", peer=peer)

    talk.broker.lost(12, talk.instant)
    assert writes(talk) == [1, 2, 3, 4]
    assert talk.broker.membership.due(talk.instant) == talk.broker.due(talk.instant) == LONG_AGO, "the next turn comes at once"
    talk.broker.lost(11, talk.instant)
    assert writes(talk) == [5, 6, 7, 8], "who was not told yet comes first"
    assert writes(talk) == [9, 10, 1], "who is gone is not told"
    assert writes(talk) == [2, 3, 4]
    assert writes(talk) == []
    assert talk.broker.membership.due(talk.instant) > talk.instant.steady


def test_a_notice_is_one_way_and_says_java(talk):
    talk.consume("T")

    [command] = [c for c in talk.received[1] if c.code == 40]
    assert (command.is_oneway, command.is_response, command.language) == (True, False, 0)


def test_the_others_are_told_when_a_member_unregisters_or_is_lost(talk):
    for peer in (1, 2, 3):
        talk.consume("T", peer=peer)
    for peer in (1, 2, 3):
        notices(talk, peer)

    talk.ask(UnregisterClient(client_id="client-2", consumer_group="G"), peer=2)
    assert (notices(talk, 1), notices(talk, 2), notices(talk, 3)) == (["G"], [], ["G"])
    talk.lose(3)
    assert notices(talk, 1) == ["G"]


def test_members_that_fall_silent_are_dropped_and_closed(talk):
    talk.consume("T", peer=1)
    talk.wait(60_000)
    talk.consume("T", peer=2)
    notices(talk, 2)

    talk.wait(75_000)

    assert 1 in talk.closed
    reply = talk.ask(GetConsumerListByGroup(consumer_group="G"), peer=3)
    assert from_json(ConsumerIdList, reply.body).consumer_id_list == ["client-2"]
    assert "G" in notices(talk, 2)


def test_a_group_nobody_is_in_has_no_members_to_list(talk):
    reply = talk.ask(GetConsumerListByGroup(consumer_group="G"))

    assert (reply.code, reply.remark) == (1, "no consumer for this group, G")


def test_connections_of_a_group_are_listed(talk):
    talk.consume("T", "U")

    found = from_json(ConsumerConnection, talk.ask(GetConsumerConnectionList(consumer_group="G")).body)

    assert [(c.client_id, c.client_addr, c.version) for c in found.connection_set] == [("client-1", "10.0.0.1:5000", 409)]
    assert set(found.subscription_table) == {"T", "U"}
    assert talk.ask(GetConsumerConnectionList(consumer_group="nobody")).code == 206


def test_producers_are_listed(talk):
    talk.ask(HeartBeat(), to_json(HeartbeatData(client_id="me", producer_data_set=[ProducerData("P")])))

    found = from_json(ProducerConnection, talk.ask(GetProducerConnectionList(producer_group="P")).body)
    everything = from_json(ProducerTable, talk.ask(GetAllProducerInfo()).body)

    assert [c.client_id for c in found.connection_set] == ["me"]
    assert [(p.client_id, p.remote_ip) for p in everything.data["P"]] == [("me", "/10.0.0.1:5000")]
    assert talk.ask(GetProducerConnectionList(producer_group="nobody")).code == 1


def test_heartbeats_that_are_not_ones_are_refused(talk):
    assert talk.ask(HeartBeat()).code == 1
    assert talk.ask(HeartBeat(), b"\xff\xfe{").code == 1
    assert talk.ask(HeartBeat(), b'{"clientID":"c","producerDataSet":[{"groupName":"../x"}]}').code == 1
    assert talk.consume("T", group="a b").code == 1
    assert talk.broker.topics.get("%RETRY%a b") is None


def test_a_client_may_ask_whether_its_subscription_would_be_taken(talk):
    good = CheckClientBody(subscription_data=SubscriptionData.of(subscription("T", "A")))
    odd = CheckClientBody(subscription_data=SubscriptionData(topic="T", sub_string="||"))
    bad = CheckClientBody(subscription_data=SubscriptionData(topic="T", sub_string="a > 1", expression_type="WEIRD"))

    assert talk.ask(CheckClientConfig(), to_json(good)).code == 0
    assert talk.ask(CheckClientConfig(), to_json(odd)).code == 0
    assert talk.ask(CheckClientConfig(), to_json(bad)).code == 23


def test_a_request_for_a_client_is_passed_on_and_its_answer_comes_back(talk):
    talk.consume("T", peer=1)
    opaque = talk.post(GetConsumerRunningInfo(consumer_group="G", client_id="client-1"), peer=2)
    talk.turn()
    [asked] = [c for c in talk.received[1] if c.code == 307]

    talk.feed(1, encode(reply_command(asked, body=b'{"how":"well"}')))
    talk.turn()

    assert talk.answer(opaque, peer=2).body == b'{"how":"well"}'


def test_a_client_that_does_not_answer_is_given_up_after_ten_seconds(talk):
    talk.consume("T", peer=1)
    opaque = talk.post(GetConsumerRunningInfo(consumer_group="G", client_id="client-1"), peer=2)
    talk.turn()

    talk.wait(9_999)
    assert talk.answer(opaque, peer=2) is None
    talk.wait(1)
    assert talk.answer(opaque, peer=2).code == 207


def test_a_client_that_is_lost_is_given_up_at_once_and_one_that_is_not_there_too(talk):
    talk.consume("T", peer=1)
    opaque = talk.post(GetConsumerRunningInfo(consumer_group="G", client_id="client-1"), peer=2)
    talk.turn()
    talk.lose(1)

    assert talk.answer(opaque, peer=2).code == 1
    assert talk.ask(GetConsumerRunningInfo(consumer_group="G", client_id="client-1"), peer=2).code == 1


def test_a_client_that_is_too_old_to_answer_is_not_asked(talk):
    talk.consume("T", peer=1)
    talk.broker.clients.member("G", "client-1").version = 61

    assert talk.ask(GetConsumerRunningInfo(consumer_group="G", client_id="client-1"), peer=2).code == 1


def test_members_that_come_in_one_turn_are_told_once(talk):
    for peer in range(1, 6):
        talk.post(HeartBeat(), to_json(heartbeat(f"c{peer}")), peer=peer)
    talk.turn()

    assert [notices(talk, peer) for peer in range(1, 6)] == [["G"]] * 5


def test_a_client_id_of_any_length_is_refused(talk):
    assert talk.ask(HeartBeat(), to_json(heartbeat("c" * 1025))).code == 1
    assert talk.broker.clients.group("G") is None


def test_a_subscription_without_a_version_is_as_old_as_its_heartbeat(talk):
    talk.send("T")
    data = heartbeat("c")
    data.consumer_data_set[0].subscription_data_set = [SubscriptionData(topic="T")]
    assert talk.ask(HeartBeat(), to_json(data)).code == 0

    pulls = [pull_header("T", expression=None, version=version) for version in (5, talk.now, talk.now + 1)]
    codes = [talk.ask(pull).code for pull in pulls]

    assert codes == [0, 0, 25]


def test_a_subscription_without_a_topic_is_refused(talk):
    data = heartbeat("c")
    data.consumer_data_set[0].subscription_data_set = [SubscriptionData(sub_version=1)]

    reply = talk.ask(HeartBeat(), to_json(data))

    assert (reply.code, reply.remark) == (1, "a subscription of the consumer group G names no topic")


def test_a_client_may_leave_without_its_id(talk):
    talk.ask(HeartBeat(), to_json(heartbeat("c")))

    assert talk.ask(UnregisterClient(consumer_group="G")).code == 0
    assert talk.ask(GetConsumerListByGroup(consumer_group="G")).code == 1


def test_a_consumer_that_is_refused_hides_neither_the_producers_nor_the_other_consumers_of_its_client(make_talk):
    talk = make_talk(transaction_timeout_ms=1000, transaction_check_interval_ms=5000)
    good, bad = heartbeat("c1").consumer_data_set[0], ConsumerData("bad", subscription_data_set=[SubscriptionData(topic="")])
    data = HeartbeatData("c1", producer_data_set=[ProducerData("not a group"), ProducerData(GROUP)], consumer_data_set=[bad, good])
    refused = talk.ask(HeartBeat(), to_json(data))
    prepare(talk)
    talk.wait(5500)

    assert refused.code == 1
    assert "illegal characters" in refused.remark  # the first of the two that were refused
    assert [header.msg_id for header, _ in checks(talk)] == ["u1"]
    assert set(talk.broker.clients.producers) == {GROUP}
    assert set(talk.broker.clients.consumers) == {"G"}


def test_members_that_do_not_subscribe_alike_are_named_with_their_subscriptions_once(talk, caplog):
    for peer, topic in ((1, "orders"), (2, "paid"), (1, "orders"), (2, "paid")):
        talk.consume(topic, "%RETRY%G", peer=peer)

    (said,) = [text for record in caplog.records if "must subscribe alike" in (text := record.getMessage())]
    assert "members of group G must subscribe alike, but subscribe client-1 to orders (*); client-2 to paid (*)" in said


def test_a_pull_that_another_members_subscription_took_is_refused_with_the_difference(talk):
    talk.send("orders")
    for peer, topic in ((1, "orders"), (2, "paid")):
        talk.consume(topic, peer=peer)

    refused = talk.ask(pull_header("orders", expression=None), peer=1)

    assert refused.code == 24
    assert (
        "subscription not exist: members of group G must subscribe alike, but subscribe client-1 to orders (*); " in refused.remark
    )


def test_members_that_subscribe_alike_again_are_warned_of_anew_when_they_differ_again(talk, caplog):
    for peer, topic in ((1, "orders"), (2, "paid"), (2, "orders"), (2, "paid")):
        talk.consume(topic, peer=peer)
    talk.ask(UnregisterClient(client_id="client-2", consumer_group="G"), peer=2)

    assert len([record for record in caplog.records if "must subscribe alike" in record.getMessage()]) == 2
    assert talk.broker.clients.group("G").difference() == ""


def test_long_subscriptions_are_told_apart_by_more_than_what_is_shown(talk):
    for peer, last in ((1, "a"), (2, "b")):
        talk.consume("orders", peer=peer, expression=" || ".join([*(f"t{number}" for number in range(200)), last]))

    said = talk.broker.clients.group("G").difference()
    assert "client-1" in said
    assert "client-2" in said
    assert len(said) < 700
