"""`halfmoon bench` against a running broker: that its figures are of what it did."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("options", [(), ("--connections", "2", "--in-flight", "4"), ("--batch", "8", "--size", "100")])
def test_send_counts_what_the_broker_stored(run, request, options):
    topic = f"bench_{len(options)}_{abs(hash(options)) % 1000}"

    found = run("bench", "send", "--topic", topic, "--for", "300ms", *options, "--json").json()

    queues = run("topic", "show", topic, "--json").json()["queues"]
    warm_up = 2 if "--connections" in options else 1
    assert sum(queue["max_offset"] for queue in queues) == found["messages"] + warm_up
    assert found["failed"] == 0
    assert 0 < found["p50_us"] <= found["p99_us"] <= found["max_us"]
    assert found["messages_per_second"] == pytest.approx(found["messages"] / found["seconds"], rel=0.01)


def test_pull_reads_what_a_topic_holds(run, topic):
    run("produce", "--topic", topic, "--count", "50", "x" * 100)

    found = run("bench", "pull", "--topic", topic, "--connections", "2", "--json").json()

    assert found["messages"] == 50
    assert "messages/s" in run("bench", "pull", "--topic", topic).out


def test_pulling_an_empty_topic_is_exit_code_1(run, topic):
    ran = run("bench", "pull", "--topic", topic)

    assert ran.code == 1
    assert topic in ran.err


def test_header_serialization_can_be_chosen(run):
    assert run("bench", "send", "--topic", "bench_rocketmq", "--for", "100ms", "--serialization", "rocketmq").code == 0
    assert run("bench", "send", "--topic", "bench_rocketmq", "--for", "100ms", "--serialization", "xml").code == 2
