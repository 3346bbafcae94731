"""`halfmoon client` against a running broker with a producer and consumers."""

from __future__ import annotations

import pytest

from halfmoon import Message, Producer, PullConsumer
from tests.waiting import until


@pytest.fixture
def groups(run, cluster, topic):
    """A group with a producer, and one with two consumers, which the broker knows."""
    producers, consumers = f"P_{topic}", f"C_{topic}"
    members = [PullConsumer(group=consumers, nameserver=cluster.nameserver) for _ in range(2)]
    for member in members:
        member.subscribe(topic)
    with Producer(group=producers, nameserver=cluster.nameserver) as producer, members[0], members[1]:
        producer.send(Message(topic, b"registers with the brokers of the topic"))
        until(lambda: len(listed(run, "--group", consumers)) == 2 and len(listed(run, "--group", producers)) == 1)
        yield producers, consumers


def listed(run, *options):
    return run("client", "list", *options, "--json").json()["clients"]


def test_all_connected_clients_are_listed_by_kind_and_group(run, cluster, groups):
    producers, consumers = groups

    found = [each for each in listed(run) if each["group"] in groups]

    assert [(each["kind"], each["group"]) for each in found] == [("consumer", consumers)] * 2 + [("producer", producers)]
    assert len({each["client_id"] for each in found}) == 3
    for each in found:
        assert (each["language"], each["version"], each["brokers"]) == ("PYTHON", "V4_9_8", [cluster.broker])
        assert each["address"].startswith("127.0.0.1:")


@pytest.mark.parametrize("number", [0, 1])
def test_the_clients_of_one_group_are_listed(run, groups, number):
    assert {each["group"] for each in listed(run, "--group", groups[number])} == {groups[number]}


def test_a_group_without_clients_has_none(run):
    ran = run("client", "list", "--group", "nobody")

    assert (ran.code, ran.out) == (0, "none\n")


def test_who_left_is_not_listed_any_more(run, cluster, topic):
    with Producer(group=f"P_{topic}", nameserver=cluster.nameserver) as producer:
        producer.send(Message(topic, b"x"))
        until(lambda: listed(run, "--group", f"P_{topic}"))

    until(lambda: not listed(run, "--group", f"P_{topic}"))


def test_an_unknown_cluster_is_refused(run):
    assert run("client", "list", "--cluster", "elsewhere").code == 2


def test_people_see_a_line_for_each(run, groups):
    lines = [line.split() for line in run("client", "list").out.splitlines() if groups[0] in line]

    assert [(line[0], line[1], line[-3], line[-2]) for line in lines] == [("producer", groups[0], "PYTHON", "V4_9_8")]
