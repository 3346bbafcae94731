"""`halfmoon topic` against a running broker."""

from __future__ import annotations

import re

import halfmoon
from halfmoon.errors import ConnectFailed, PartlyDone, broker_error
from halfmoon.model import MessageQueue
from halfmoon.results import QueueTrim


def test_a_topic_is_made_shown_listed_and_deleted(run):
    made = run("topic", "create", "orders", "--queues", "3", "--json")
    shown = run("topic", "show", "orders", "--json").json()
    listed = run("topic", "list", "--names", "--json").json()
    deleted = run("topic", "delete", "orders", "--yes", "--json")

    (of_broker,) = made.json()["brokers"].values()
    assert {**made.json(), "brokers": of_broker} == {
        "topic": "orders", "queues": 3, "perm": 6, "brokers": {"queues": 3, "perm": 6},
    }  # fmt: skip
    assert shown["brokers"] == [{"broker": "broker-a", "read_queues": 3, "write_queues": 3, "perm": 6}]
    assert [queue["queue_id"] for queue in shown["queues"]] == [0, 1, 2]
    assert "orders" in listed
    assert deleted.code == 0
    assert "orders" not in run("topic", "list", "--names", "--json").json()


def test_topics_of_the_protocol_are_listed_when_asked_for(run):
    assert "TBW102" not in run("topic", "list", "--names", "--json").json()
    assert {"TBW102", "broker-a", "DefaultCluster"} <= set(run("topic", "list", "--all", "--names", "--json").json())


def test_topics_are_listed_with_messages_rate_size_and_groups(run, topic):
    run("produce", topic, "--count", "5", "order")
    run("consume", topic, "--group", "C_list", "--count", "5", "--idle", "30s")

    listed = run("topic", "list")
    line = next(line for line in listed.out.splitlines() if line.split()[0] == topic)
    found = next(row for row in run("topic", "list", "--jsonl").lines() if row["name"] == topic)
    in_array = next(row for row in run("topic", "list", "--json").json() if row["name"] == topic)
    assert found.keys() == in_array.keys(), "an array of the same objects, as that of groups"

    assert listed.out.split("\n")[0].split() == ["topic", "messages", "in/s", "size", "groups"]
    assert line.split()[1] == "5"
    assert line.split()[-1] == "1"
    assert (found["messages"], found["groups"]) == (5, ["C_list"])
    assert 5 * 91 < found["size_bytes"] < 5 * 1000
    assert topic in run("topic", "list", "--names").out.splitlines()


def test_topics_are_listed_by_name_where_figures_are_refused(run, topic, monkeypatch):
    def refused(*_, **__):
        raise broker_error(16, "no permission to look")

    monkeypatch.setattr("halfmoon.Admin.topic_overview", refused)
    ran = run("topic", "list")

    assert ran.code == 0
    assert next(line for line in ran.out.splitlines() if topic in line).split()[1:] == ["-", "-", "-", "-"]
    assert "not reported: " in ran.err
    assert "no permission to look" in ran.err


def test_a_table_for_people_names_every_queue(run, topic):
    ran = run("topic", "show", topic)

    assert ran.code == 0
    assert ran.out.count("broker-a") == 3


def test_a_topic_that_is_to_be_shown_and_is_missing_is_said_to_be_with_near_names(run, topic):
    ran = run("topic", "show", topic + "s")

    assert ran.code == 1
    assert f"there is no topic {topic}s; did you mean '{topic}'?" in ran.err


def test_creating_a_topic_that_is_there_changes_what_is_named_and_hides_no_message_unless_forced(run, topic):
    run("produce", "--topic", topic, "--count", "4", "order")  # two to each queue
    assert run("topic", "create", topic, "--perm", "4").code == 0
    assert run("topic", "show", topic, "--json").json()["brokers"][0] == {
        "broker": "broker-a", "read_queues": 2, "write_queues": 2, "perm": 4,
    }  # fmt: skip

    refused = run("topic", "create", topic, "--queues", "1")
    assert refused.code == 2
    assert "hold 2 messages which no group reads" in refused.err
    assert run("topic", "show", topic, "--json").json()["brokers"][0]["read_queues"] == 2

    forced = run("topic", "create", topic, "--queues", "1", "--force")
    assert (forced.code, forced.out) == (0, f"topic {topic} has 1 queue on each broker\n")


def test_an_unknown_topic_is_refused_by_name(run):
    for verb in ("show", "delete"):
        ran = run("topic", verb, "nobody_knows")

        assert ran.code == 1
        assert "nobody_knows" in ran.err


def test_a_name_that_no_broker_takes_is_a_usage_error(run):
    ran = run("topic", "create", "no blanks")

    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_without_a_cluster_the_error_names_the_address(run_alone):
    ran = run_alone("topic", "list", "--nameserver", "127.0.0.1:1", "--json")

    assert ran.code == 1
    assert "127.0.0.1:1" in ran.err
    assert '"kind":"NoNameServerAnswers"' in ran.err


def test_a_topic_is_deleted_only_when_that_is_confirmed(run, topic, at_terminal):
    unasked = run("topic", "delete", topic)
    declined = at_terminal("n\n", "topic", "delete", topic)

    assert (unasked.code, "Not done. Add --yes to" in unasked.err) == (2, True)
    assert (declined.code, f"delete topic {topic} and all its messages? [y/N]" in declined.err) == (1, True)
    assert topic in run("topic", "list", "--names", "--json").json()
    assert at_terminal("y\n", "topic", "delete", topic).code == 0
    assert topic not in run("topic", "list", "--names", "--json").json()


def test_a_trim_is_shown_and_confirmed_and_then_nobody_is_given_the_messages(run, topic, at_terminal):
    run("produce", topic, "--order-key", "one queue", *"abcd")

    preview = run("topic", "trim", topic, "--offset", "3", "--dry-run", "--json").json()
    assert sorted((each["before"], each["then"]) for each in preview["queues"]) == [(0, 3)]
    assert at_terminal("n\n", "topic", "trim", topic, "--offset", "3").code == 1
    assert len(run("consume", topic, "--json").lines()) == 4

    ran = at_terminal("y\n", "topic", "trim", topic, "--offset", "3")
    assert ran.code == 0
    assert f"trim topic {topic}: 3 messages will never be delivered again? [y/N]" in ran.err
    assert [each["body"] for each in run("consume", topic, "--json").lines()] == ["d"]

    assert run("topic", "trim", topic, "--before", "0", "--yes").code == 0  # nothing is that old
    assert len(run("consume", topic, "--json").lines()) == 1
    assert run("topic", "trim", topic).code == 2


def test_a_trim_that_is_done_in_part_shows_what_is_trimmed_and_names_the_broker_that_failed(run, topic, monkeypatch):
    trimmed, trims = halfmoon.Admin.trim_topic, [QueueTrim(MessageQueue(topic, "broker-a", 0), 1, 5)]

    def partly(self, *arguments, dry_run, **values):
        if dry_run:
            return trimmed.__get__(self, halfmoon.Admin)(*arguments, dry_run=dry_run, **values)
        raise PartlyDone({"broker-a": trims}, {"broker-b": ConnectFailed("connect to b:1 failed", "b:1")})

    monkeypatch.setattr(halfmoon.Admin, "trim_topic", partly)
    plain, as_json = (run("topic", "trim", topic, "--offset", "5", "--yes", *how) for how in ([], ["--json"]))

    assert (plain.code, as_json.code) == (1, 1)
    assert re.search(r"broker-a +0 +1 +5 +4", plain.out)
    assert "done at broker-a, but not at broker-b: connect to b:1 failed" in plain.err
    assert as_json.json()["queues"] == [{"broker": "broker-a", "queue_id": 0, "before": 1, "then": 5}]
    assert as_json.json()["failed"] == {"broker-b": "connect to b:1 failed"}
