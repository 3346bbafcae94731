"""The values of a broker's metrics, against what was sent, consumed, decided and refused."""

from __future__ import annotations

import pytest

from halfmoon.broker.metrics.declared import METRICS
from halfmoon.broker.metrics.figures import Figures
from halfmoon.model import MessageModel
from halfmoon.wire.bodies import BrokerConsumeStats, KVTable, from_json
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.group import GetBrokerConsumeStats
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.topic import DeleteTopicInBroker, UpdateAndCreateTopic
from tests.broker.consumers.test_redelivery import back, consuming, sent
from tests.broker.copies.serving_slave import SlaveTalk
from tests.broker.copies.slave import Port, master_lease
from tests.broker.half import CHECKS, COMMIT, ROLLBACK, end, prepare, produce

ROW = ("DefaultCluster", "broker-a")


def figures(talk):
    """Return values by name and labels; a series comes once."""
    found = {}
    for metric, labels, value in filter(None, Figures(talk.broker).samples(talk.instant)):
        assert len(labels) == len(metric.labels), metric.name
        assert (metric.name, labels) not in found
        found[metric.name, labels] = value
    return found


def of(talk, name, *labels):
    return figures(talk).get((name, labels))


def commit(talk, offset, queue_id=0, group="G", topic="T"):
    header = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
    assert talk.ask(header).code == 0


def test_every_sample_is_of_a_declared_metric_and_every_metric_has_a_sample_where_there_is_something(make_talk):
    talk = make_talk(lease=master_lease, **CHECKS)
    talk.send("T", peer=2)  # a connection of its own: it will have been silent for too long
    talk.broker.stats.turned(20)
    talk.broker.admin.certificate_expires_ms = lambda: 1_000
    talk.wait(130_000)
    produce(talk, "orders")
    prepare(talk)
    talk.consume("T", "%RETRY%G", "%DLQ%G")
    for topic in ("T", "%RETRY%G", "%DLQ%G"):
        assert talk.send(topic).code == 0
    talk.send("T", properties="DELAY\x013\x02")
    talk.pull()
    talk.broker.stats.add("SNDBCK_PUT_NUMS", "T@G", 1)
    slaves = Port(talk)
    slaves.report(slaves.connect(1), 0)

    of_slave = filter(None, SlaveTalk(talk).broker.services.samples(("broker-a",), talk.instant))
    names = {name for name, _ in figures(talk)} | {metric.name for metric, _, _ in of_slave}
    assert names == {metric.name for metric in METRICS}


def test_a_broker_counts_what_it_stored_handed_out_and_refused(talk):
    for _ in range(5):
        talk.send()
    talk.pull()
    talk.pull(offset=5)
    assert talk.send("no such/topic").code == 1
    assert talk.ask(UpdateConsumerOffset(consumer_group="G", topic="nowhere", queue_id=0, commit_offset=1)).code == 17

    found = figures(talk)
    assert found["halfmoon_messages_stored_total", ("broker-a",)] == 5
    assert found["halfmoon_messages_delivered_total", ("broker-a",)] == 5
    assert found["halfmoon_pulls_total", ("broker-a", "found")] == 1
    assert found["halfmoon_pulls_total", ("broker-a", "missed")] == 1
    assert found["rocketmq_producer_offset", (*ROW, "T")] == 5
    assert talk.broker.peers.refusals == {1: 1, 17: 1}


def test_refused_sends_pulls_and_decisions_are_counted_by_code(talk):
    talk.broker.store.maintenance.disk_full = "the disk is full"
    assert [talk.send(queue_id=queue_id).code for queue_id in range(3)] == [14, 14, 14]
    talk.broker.store.maintenance.disk_full = None
    sent = prepare(talk)
    refused = dict(talk.broker.peers.refusals)
    assert refused == {14: 3}
    assert talk.pull("nowhere").code == 17
    assert end(talk, sent, COMMIT, group="others").code != 0
    assert sum(talk.broker.peers.refusals.values()) == 5
    assert talk.broker.peers.refusals[17] == 1


def test_the_lag_of_a_group_is_what_tools_are_told_and_its_age_that_of_the_oldest_message(talk):
    for queue_id, count in ((0, 3), (1, 2)):
        for _ in range(count):
            talk.send(queue_id=queue_id)
            talk.wait(1000)
    commit(talk, 1)

    found = figures(talk)
    row = (*ROW, "T", "G")
    assert found["rocketmq_consumer_offset", row] == 1
    assert found["rocketmq_message_accumulation", row] == 4
    assert found["rocketmq_group_diff", ("G", "T", "0", "1")] == 4
    assert found["halfmoon_group_lag_seconds", row] == 4.0, "the second message of the first queue"
    assert found["rocketmq_group_get_latency_by_storetime", row] == 4000
    stats = from_json(BrokerConsumeStats, talk.ask(GetBrokerConsumeStats(is_order=False)).body)
    assert stats.total_diff == 4

    commit(talk, 3)
    commit(talk, 2, queue_id=1)
    assert of(talk, "rocketmq_message_accumulation", *row) == 0
    assert of(talk, "halfmoon_group_lag_seconds", *row) == 0


def test_a_group_that_is_online_lags_in_what_it_subscribes_to_alone(talk):
    talk.send("T")
    talk.send("U")
    commit(talk, 0)
    talk.consume("U")

    found = figures(talk)
    assert ("rocketmq_message_accumulation", (*ROW, "T", "G")) not in found
    assert found["rocketmq_group_diff", ("G", "U", "1", "1")] == 1
    assert found["halfmoon_group_members", ("broker-a", "G")] == 1


def test_a_group_whose_members_each_get_all_messages_has_no_lag_here(talk):
    talk.send("T")
    talk.consume("T", model=MessageModel.BROADCASTING)
    assert of(talk, "rocketmq_message_accumulation", *ROW, "T", "G") is None


def test_transactions_are_counted_as_they_are_decided(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, "orders")
    sent = [prepare(talk, f"u{number}") for number in range(4)]
    talk.wait(7000)
    end(talk, sent[0], COMMIT, oneway=True)
    end(talk, sent[1], ROLLBACK, oneway=True)

    found = figures(talk)
    group = ("broker-a", "orders")
    assert found["halfmoon_transactions_pending", group] == 2
    assert found["halfmoon_transactions_pending_all", ("broker-a",)] == 2
    assert found["halfmoon_transactions_oldest_pending_seconds", group] == 7.0
    assert found["halfmoon_transactions_producers", group] == 1
    assert found["halfmoon_transactions_halves_total", ("broker-a",)] == 4
    assert found["halfmoon_transactions_commits_total", ("broker-a",)] == 1
    assert found["halfmoon_transactions_rollbacks_total", ("broker-a",)] == 1
    assert found["halfmoon_transactions_checks_sent_total", ("broker-a",)] == 4
    assert found["halfmoon_transactions_expired_total", ("broker-a",)] == 0
    times = found["halfmoon_transactions_decision_seconds", ("broker-a",)]
    assert (dict(times.buckets())[4.0], dict(times.buckets())[8.0], times.total) == (0, 2, 14)


@pytest.mark.parametrize("asked", ["DELAY\x013\x02", "TIMER_DELAY_MS\x0110000\x02"], ids=["by level", "by time"])
def test_delayed_messages_wait_and_are_late_when_they_cannot_be_delivered(talk, asked):
    level = "3" if asked.startswith("DELAY") else "0"
    for _ in range(3):
        assert talk.send(properties=asked).code == 0
        talk.wait(1000)
    assert of(talk, "halfmoon_delays_pending", "broker-a", level) == 3
    assert of(talk, "halfmoon_delays_due", "broker-a", level) == 0

    talk.now += 9_500  # nothing is delivered meanwhile
    assert of(talk, "halfmoon_delays_due", "broker-a", level) == 3
    assert of(talk, "halfmoon_delays_late_seconds", "broker-a", level) == pytest.approx(2.5, abs=0.51)
    talk.wait(5000)
    assert of(talk, "halfmoon_delays_due", "broker-a", "0") == 0
    assert not of(talk, "halfmoon_delays_pending", "broker-a", level)


def test_runtime_information_has_the_same_numbers(talk):
    for _ in range(3):
        talk.send()
        talk.broker.stats.turned(20)
        talk.wait(61_000)
    texts = from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table
    found = {name: value for (name, _), value in figures(talk).items()}
    assert found["rocketmq_brokeruntime_commitlog_maxoffset"] == int(texts["commitLogMaxOffset"]) > 0
    assert found["rocketmq_brokeruntime_msg_put_total_today_now"] == 3
    assert found["rocketmq_brokeruntime_put_tps600"] == float(texts["putTps"].split()[2])
    assert found["rocketmq_brokeruntime_pmdt_10to50ms"] == 1, "in the last whole minute"


def test_the_end_of_the_certificate_is_reported_where_there_is_one(talk):
    def reported():
        texts = from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table
        found = {name: value for (name, _), value in figures(talk).items()}
        return texts.get("tlsCertificateExpires"), found.get("halfmoon_tls_certificate_expiry_timestamp_seconds")

    assert reported() == (None, None)
    talk.broker.admin.certificate_expires_ms = lambda: 1_700_000_000_500
    assert reported() == ("1700000000500", 1_700_000_000.5)


def test_a_topic_that_is_deleted_while_figures_are_gathered_is_left_out(talk):
    for topic in ("A", "B"):
        talk.send(topic)
        commit(talk, 0, topic=topic)
    gathering = Figures(talk.broker).samples(talk.instant)
    seen = [next(gathering) for _ in range(30)]
    assert talk.ask(DeleteTopicInBroker(topic="B")).code == 0
    seen += gathering
    topics = {labels[-1] for metric, labels, _ in filter(None, seen) if metric.name == "rocketmq_producer_offset"}
    assert topics == {"A"}


def test_gathering_lets_others_go_first_between_few_queues(talk):
    fields = {"topic": "wide", "default_topic": "", "perm": 6, "topic_filter_type": "SINGLE_TAG", "order": False}
    assert talk.ask(UpdateAndCreateTopic(**fields, read_queue_nums=1024, write_queue_nums=1024)).code == 0
    commit(talk, 0, topic="wide")
    pauses = sum(sample is None for sample in Figures(talk.broker).samples(talk.instant))
    assert pauses >= 8, "256 queues at once: four times for the topic, four times for the group"


def test_a_queue_counts_as_stuck_when_messages_have_waited_for_a_minute_and_members_make_no_progress(talk):
    talk.consume("T")
    for _ in range(3):
        talk.send("T")
    commit(talk, 1)
    talk.wait(59_000)
    assert of(talk, "halfmoon_group_stuck_queues", *ROW, "T", "G") == 0
    talk.wait(1_000)
    assert of(talk, "halfmoon_group_stuck_queues", *ROW, "T", "G") == 1
    commit(talk, 2)
    assert of(talk, "halfmoon_group_stuck_queues", *ROW, "T", "G") == 0

    talk.wait(61_000)
    talk.lose(1)
    assert of(talk, "halfmoon_group_stuck_queues", *ROW, "T", "G") == 0, "without members it is behind, and not stuck"


def test_messages_that_wait_for_redelivery_are_counted_on_their_way_and_in_the_retry_topic(talk):
    consuming(talk)
    for _ in range(2):
        assert talk.ask(back(sent(talk).physical_offset)).code == 0
    assert of(talk, "halfmoon_group_redelivery", "broker-a", "G") == 2
    talk.wait(11_000)
    assert of(talk, "halfmoon_group_redelivery", "broker-a", "G") == 2
    commit(talk, 1, topic="%RETRY%G")
    assert of(talk, "halfmoon_group_redelivery", "broker-a", "G") == 1
