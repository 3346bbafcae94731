"""`halfmoon msg trace` and `halfmoon msg resend` against a running broker: lives told from what it keeps anyway."""

from __future__ import annotations

import time

import pytest

from halfmoon import (
    ConsumeFrom,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from tests.waiting import until

pytestmark = pytest.mark.slow


def consumer(cluster, group, topic, listener, **settings):
    found = PushConsumer(
        group=group, nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, persist_offsets_ms=50, **settings
    )
    found.subscribe(topic)
    found.on_message(listener)
    return found


def trace(run, *words):
    ran = run("msg", "trace", *words, "--json")
    assert ran.code == 0, ran.err
    return ran.json()


def whats(found):
    return [event["what"] for event in found["events"]]


def group(found, name):
    [one] = [each for each in found["groups"] if each["group"] == name]
    return one


def produced(run, topic, *words):
    return run("produce", "--topic", topic, "--tag", "A", "--key", "k1", *words, "--json", "one").json()


def test_a_message_was_born_and_stored_and_no_group_wants_it(run, topic):
    sent = produced(run, topic)

    found = trace(run, sent["msg_id"], "--topic", topic)

    assert (found["msg_id"], found["topic"], found["tag"], found["keys"]) == (sent["msg_id"], topic, "A", "k1")
    assert whats(found) == ["born", "stored"]
    born, stored = found["events"]
    assert born["at_ms"] <= stored["at_ms"] <= time.time() * 1000
    assert stored["where"] == f"broker-a/{sent['queue_id']}@{sent['queue_offset']}"
    assert found["groups"] == []


def test_it_is_found_without_its_topic_and_by_the_brokers_id(run, topic):
    sent = produced(run, topic)

    assert trace(run, sent["msg_id"])["topic"] == topic
    assert trace(run, sent["offset_msg_id"])["msg_id"] == sent["msg_id"]


def test_of_each_group_it_is_told_whether_it_is_beyond_the_message(run, topic):
    sent = [first := produced(run, topic), last := produced(run, topic)]
    while last["queue_id"] != first["queue_id"]:
        sent.append(last := produced(run, topic))
    for name in ("C_beyond", "C_behind"):
        run("consume", "--topic", topic, "--group", name, "--count", len(sent), "--idle", "60s")
    run("group", "reset", "C_behind", topic, "--to-offset", str(first["queue_offset"]), "--queue", str(first["queue_id"]), "--yes")

    found = trace(run, last["msg_id"], "--topic", topic)

    assert group(found, "C_beyond")["state"] == "consumed"
    behind = group(found, "C_behind")
    assert (behind["state"], behind["behind"]) == ("waits", last["queue_offset"] - first["queue_offset"])


def test_a_delayed_message_is_seen_while_it_waits_and_after(run, topic, cluster):
    with Producer(group="P_delay", nameserver=cluster.nameserver) as producer:
        sent = producer.send(Message(topic, b"later", delay_level=1))

    assert whats(trace(run, sent.msg_id)) == ["born", "delayed"]
    found = until(lambda: "delivered after its delay" in whats(now := trace(run, sent.msg_id)) and now)

    born, delayed, delivered = found["events"]
    assert delayed["detail"] == "level 1"
    assert delivered["at_ms"] - delayed["at_ms"] >= 1000
    assert born["at_ms"] <= delayed["at_ms"]


def test_a_message_that_is_given_back_is_told_with_reason_and_attempts_until_it_is_dead(run, topic, cluster):
    def fail(messages, context):
        context.delay_level = 1
        raise ValueError("no such order")

    name = f"C_{topic}"[:100]
    with consumer(cluster, name, topic, fail, reconsume_max=1):
        sent = produced(run, topic)
        again = until(lambda: "sent back" in whats(now := trace(run, sent["msg_id"])) and now)
        found = until(lambda: group(now := trace(run, sent["msg_id"]), name)["state"] == "dead letter" and now)

    assert group(again, name)["retries"] == 1
    assert "ValueError: no such order" in next(e["detail"] for e in again["events"] if e["what"] == "sent back")
    assert whats(found) == ["born", "stored", "sent back", "delivered again", "dead letter"]
    assert [event["who"] for event in found["events"][2:]] == [name] * 3


def test_a_message_consumed_at_the_second_attempt_is_consumed(run, topic, cluster):
    seen = []

    def second_time(messages, context):
        seen.extend(messages)
        context.delay_level = 1
        return ConsumeStatus.RECONSUME_LATER if len(seen) == 1 else ConsumeStatus.CONSUME_SUCCESS

    name = f"C_{topic}"[:100]
    with consumer(cluster, name, topic, second_time):
        sent = produced(run, topic)
        found = until(lambda: group(now := trace(run, sent["msg_id"]), name)["state"] == "consumed" and len(seen) == 2 and now)

    assert group(found, name)["retries"] == 1
    assert group(found, name)["where"].startswith("broker-a/0@")


def transact(cluster, topic, state):
    with TransactionProducer(group="P_trace", nameserver=cluster.nameserver) as producer:
        producer.on_check(topic)(lambda message: LocalTransactionState.UNKNOWN)
        return producer.send_in_transaction(Message(topic, b"half"), executor=lambda message, argument: state)


def test_a_transaction_is_told_from_half_to_committed(run, topic, cluster):
    sent = transact(cluster, topic, LocalTransactionState.COMMIT)

    found = until(lambda: "committed" in whats(now := trace(run, sent.msg_id)) and now)

    assert whats(found) == ["born", "half", "committed"]
    assert (found["topic"], found["transaction"], found["events"][1]["who"]) == (topic, "COMMITTED", "P_trace")


def test_a_transaction_that_is_rolled_back_or_not_decided_is_told(run, topic, cluster):
    rolled, open_ = (transact(cluster, topic, s) for s in (LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN))

    assert until(lambda: "rolled back" in whats(trace(run, rolled.msg_id)))
    found = trace(run, open_.msg_id)
    assert whats(found) == ["born", "half", "not decided"]
    assert found["events"][-1]["at_ms"] == -1


def test_people_see_a_life(run, topic):
    sent = produced(run, topic)
    run("consume", "--topic", topic, "--group", "C_people", "--count", "1")

    shown = run("msg", "trace", sent["msg_id"]).out

    for text in (
        f"message {sent['msg_id']}, topic {topic}, tag A, keys k1",
        "born",
        "stored",
        "C_people",
        "consumed",
        "not recorded:",
    ):
        assert text in shown


def test_what_is_not_there_has_no_life(run, topic):
    assert run("msg", "trace", "0" * 32).code == 1
    assert run("msg", "trace", "0" * 32, "--topic", topic).code == 1
    assert run("msg", "trace", "no id at all \x01\x02").code == 1
    assert run("msg", "trace", "x" * 100_000).code == 1
    assert run("msg", "trace", "0" * 32, "--topic", "no such topic").code in (1, 2)


@pytest.mark.mission("002-24")
def test_what_clients_with_tracing_switched_on_tell_stands_beside_what_the_broker_keeps(run, topic, cluster):
    name, got = f"C_{topic}"[:100], []
    with consumer(cluster, name, topic, got.extend, trace=True):
        with TransactionProducer(group="P_told", nameserver=cluster.nameserver, trace=True) as producer:
            producer.on_check(topic)(lambda message: LocalTransactionState.UNKNOWN)
            commit = LocalTransactionState.COMMIT
            sent = producer.send_in_transaction(Message(topic, b"x", keys=["k1"]), executor=lambda message, argument: commit)
        until(lambda: got)

    told = until(lambda: len(t := [e for e in trace(run, sent.msg_id)["events"] if e["reported_by"] == "client"]) == 4 and t)

    assert {(event["what"], event["who"]) for event in told} == {
        ("sent", "P_told"), ("second phase sent", "P_told"), ("handed to the listener", name), ("listener returned", name)
    }  # fmt: skip
    details = {event["what"]: event["detail"] for event in told}
    assert details["sent"].startswith("stored after ")
    assert details["second phase sent"] == "COMMIT_MESSAGE"
    assert details["listener returned"].startswith("SUCCESS after ")


def test_without_tracing_nothing_is_sent_to_the_trace_topic(run, topic):
    produced(run, topic)

    before = run("topic", "show", "RMQ_SYS_TRACE_TOPIC", "--json").json()
    produced(run, topic)

    assert run("topic", "show", "RMQ_SYS_TRACE_TOPIC", "--json").json() == before


# ---------------------------------------------------------------- resend


def test_an_old_message_is_there_again_for_all(run, topic):
    sent = produced(run, topic)

    again = run("msg", "resend", sent["msg_id"], "--topic", topic, "--json").json()

    found = trace(run, sent["msg_id"], "--topic", topic)
    assert whats(found) == ["born", "stored", "stored"]
    assert again["offset_msg_id"] == found["events"][-1]["detail"]
    copy = run("msg", "get", again["offset_msg_id"], "--json").json()
    assert (copy["body"], copy["tag"], copy["keys"]) == ("one", "A", ["k1"])
    assert copy["properties"]["ORIGIN_MESSAGE_ID"] == sent["offset_msg_id"]


@pytest.mark.mission("001-01")
def test_an_old_message_is_there_again_for_one_group_alone(run, topic, cluster):
    one, other = [], []
    name = f"C_{topic}"[:90]
    with consumer(cluster, name, topic, one.extend), consumer(cluster, name + "_2", topic, other.extend):
        sent = produced(run, topic)
        until(lambda: (len(one), len(other)) == (1, 1))
        assert run("msg", "resend", sent["msg_id"], "--topic", topic, "--group", name).code == 0
        until(lambda: len(one) == 2)

    assert [(message.body, message.topic) for message in one] == [(b"one", topic)] * 2
    assert len(other) == 1


def test_a_member_is_handed_a_message_at_once_and_what_it_returns_is_shown(run, topic, cluster):
    returned = [ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.RECONSUME_LATER]
    name = f"C_{topic}"[:100]
    with consumer(cluster, name, topic, lambda messages: returned.pop(0)):
        sent = produced(run, topic)
        until(lambda: len(returned) == 2)
        words = ("msg", "resend", sent["msg_id"], "--topic", topic, "--group", name, "--now")
        good = run(*words, "--json")
        bad = run(*words)

    assert (good.code, good.json()["result"]) == (0, "CR_SUCCESS")
    assert bad.code == 1
    assert "returned CR_LATER" in bad.out


def test_a_message_cannot_be_handed_to_nobody(run, topic):
    sent = produced(run, topic)

    assert run("msg", "resend", sent["msg_id"], "--topic", topic, "--now").code == 2
    assert run("msg", "resend", sent["msg_id"], "--topic", topic, "--client", "c").code == 2
    assert run("msg", "resend", sent["msg_id"], "--topic", topic, "--group", "C_nobody", "--now").code == 1
    assert run("msg", "resend", sent["msg_id"], "--topic", topic, "--group", "C_nobody").code == 1
