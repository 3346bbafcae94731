"""Health of a group over a real broker: the facts that findings follow from."""

from __future__ import annotations

import pytest

from halfmoon import Admin, ConsumeFrom, Message, Producer, PushConsumer
from halfmoon.errors import GroupNotFound
from tests.waiting import until


@pytest.fixture
def admin(cluster):
    with Admin(nameserver=cluster.nameserver) as admin:
        yield admin


def test_a_group_is_known_with_its_members_its_progress_and_who_holds_a_queue(cluster, admin, topic):
    with Producer(group="P_health", nameserver=cluster.nameserver) as producer:
        for number in range(3):
            producer.send(Message(topic, b"%d" % number))
    group, got = f"C_{topic}", []
    consumer = PushConsumer(group=group, nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(topic)
    consumer.on_message(got.extend)
    with consumer:
        until(lambda: len(got) == 3 and not admin.lag(group, topic))
        until(lambda: admin.group_health(group).members[0].queues == 2)
        health = admin.group_health(group)

    [member] = health.members
    assert (member.client_id, member.language, member.in_process) == (consumer.client_id, "PYTHON", 0)
    assert member.subscriptions == [f"%RETRY%{group} *", f"{topic} *"]
    [queue] = [one for one in health.queues if one.queue.topic == topic]
    assert (queue.broker_offset, queue.consumer_offset, queue.lag, queue.member) == (3, 3, 0, consumer.client_id)
    assert (health.lag, health.has_consumed, health.behind_ms, health.dead_letters) == (0, True, None, 0)
    assert (health.findings, health.unasked) == ([], 0)


def test_what_waits_without_a_member_is_a_finding_of_its_group(cluster, admin, topic):
    group = f"C_{topic}"
    admin.create_group(group)
    with Producer(group="P_health", nameserver=cluster.nameserver) as producer:
        producer.send(Message(topic, b"1"))
    admin.reset_offsets(group, topic, "earliest")

    [finding] = admin.group_findings(group)

    assert (finding.kind, finding.severity, finding.group) == ("no-members", "blocked", group)
    assert finding.what == "No member is online, and 1 message waits."


def test_a_group_that_no_broker_knows_is_not_found_but_empty_in_a_list(admin):
    with pytest.raises(GroupNotFound):
        admin.group_findings("C_nobody")
    assert admin.group_health("C_nobody", brief=True).queues == []
