"""`halfmoon bench` against a running broker: that its figures are of what it did."""

from __future__ import annotations

import pytest

from tests.waiting import until


@pytest.mark.parametrize("options", [(), ("--connections", "2", "--in-flight", "4"), ("--batch", "8", "--size", "100")])
def test_send_counts_what_the_broker_stored(run, request, options):
    topic = f"bench_{len(options)}_{abs(hash(options)) % 1000}"

    found = run("bench", "send", "--topic", topic, "--for", "300ms", *options, "--json").json()

    queues = run("topic", "show", topic, "--json").json()["queues"]
    warm_up = 2 if "--connections" in options else 1
    assert sum(queue["max_offset"] for queue in queues) == found["messages"] + warm_up
    assert found["failed"] == 0
    assert 0 < found["p50_us"] <= found["p90_us"] <= found["p99_us"] <= found["p999_us"] <= found["max_us"]
    assert (
        sum(count for _, count in found["histogram"]) * int(dict(zip(options[::2], options[1::2])).get("--batch", 1))
        == (found["messages"])
    )
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


@pytest.mark.parametrize(("rollback", "share"), [(0, 0.0), (25, 0.25), (100, 1.0)])
def test_transactions_end_as_they_are_told_to(run, rollback, share):
    topic = f"bench_tx_{rollback}"

    options = ("--for", "300ms", "--connections", "2", "--in-flight", "4", "--rollback", str(rollback))
    found = run("bench", "tx", "--topic", topic, *options, "--json").json()

    half = found["half"]
    assert found["messages"] == half["messages"] > 0
    assert found["megabytes_per_second"] > 0 < half["megabytes_per_second"]
    assert found["rolled_back"] == int(found["messages"] * share)
    assert found["failed"] == 0
    assert 0 < half["p50_us"] <= half["p99_us"] <= half["max_us"] <= found["max_us"]
    assert half["p50_us"] <= found["p50_us"] <= found["p99_us"] <= found["max_us"]
    committed = found["messages"] - found["rolled_back"]
    until(lambda: stored(run, topic) == committed + 2)  # decisions are not answered; each client sent one message before


def test_a_local_transaction_takes_its_time(run):
    found = run("bench", "tx", "--topic", "bench_tx_local", "--for", "300ms", "--local", "50ms", "--json").json()

    assert found["p50_us"] - found["half"]["p50_us"] >= 49_000
    assert "latency of a half message in µs: p50 " in run("bench", "tx", "--topic", "bench_tx_local", "--for", "100ms").out


def stored(run, topic: str) -> int:
    """Return how many messages of a topic consumers can see."""
    return sum(queue["max_offset"] for queue in run("topic", "show", topic, "--json").json()["queues"])
