"""`halfmoon group` against a running broker."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest

from halfmoon import ConsumeFrom, ConsumeStatus, PullConsumer, PushConsumer
from tests.topics import new_topic
from tests.waiting import until


@pytest.fixture
def group(run, topic, request):
    """A group that consumed three messages of the topic and then went away."""
    name = f"C_{topic}"[:100]
    run("produce", "--topic", topic, "1", "2", "3")
    run("consume", "--topic", topic, "--group", name, "--count", "3")
    return name


def test_a_group_is_made_listed_and_deleted(run):
    assert run("group", "create", "C_made").code == 0
    assert "C_made" in run("group", "list", "--names", "--json").json()
    assert run("group", "delete", "C_made", "--yes").code == 0
    assert "C_made" not in run("group", "list", "--names", "--json").json()


def test_deleting_a_group_says_which_messages_go_with_it(run):
    run("group", "create", "C_dead")
    for prefix, count in (("%RETRY%", 2), ("%DLQ%", 3)):
        run("topic", "create", f"{prefix}C_dead", "--queues", "1")
        run("produce", "--topic", f"{prefix}C_dead", "--count", str(count), "order")
    refused = run("group", "delete", "C_dead")
    assert (refused.code, "2 messages in its retry topic and 3 dead letters" in refused.err) == (2, True)

    deleted = run("group", "delete", "C_dead", "--yes", "--json").json()
    assert deleted == {"group": "C_dead", "deleted": True, "retries": 2, "dead_letters": 3}


def test_groups_of_the_protocol_are_listed_when_asked_for(run):
    assert "TOOLS_CONSUMER" not in run("group", "list", "--names", "--json").json()
    assert "TOOLS_CONSUMER" in run("group", "list", "--all", "--names", "--json").json()


def test_lag_is_what_was_not_consumed(run, topic, group):
    before = run("group", "lag", group, "--json").json()
    run("produce", "--topic", topic, "4", "5")
    after = run("group", "lag", group, "--json").json()

    assert (before["lag"], after["lag"]) == (0, 2)
    assert sum(queue["broker_offset"] for queue in after["queues"] if queue["topic"] == topic) == 5


def test_more_lag_than_allowed_is_exit_code_1(run, topic, group):
    run("produce", "--topic", topic, "4", "5")

    assert run("group", "lag", group, "--max", "2").code == 0
    assert run("group", "lag", group, "--max", "1").code == 1


def test_a_group_shows_its_members_and_subscriptions(run, topic, cluster):
    with PullConsumer(group="C_members", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
        consumer.subscribe(topic, "A || B")
        consumer.poll(500)
        shown = run("group", "show", "C_members", "--json").json()

    assert [member["client_id"] for member in shown["members"]] == [consumer.client_id]
    assert shown["subscriptions"][topic] == "A || B"


def reset(run, group, topic, *options):
    return run("group", "reset", group, topic, *options, "--yes", "--json")


@pytest.mark.mission("001-01")
def test_reset_moves_a_group_to_the_earliest_to_the_latest_and_to_a_time(run, topic, group):
    for option, lag in ((("--to-earliest",), 3), (("--to-latest",), 0), (("--to-time", "1h"), 3)):
        moved = reset(run, group, topic, *option)

        assert moved.code == 0
        assert run("group", "lag", group, "--topic", topic, "--json").json()["lag"] == lag


def test_one_queue_is_moved_to_an_offset_and_the_others_stay(run, topic, group):
    queues = {each["queue_id"]: each["now"] for each in reset(run, group, topic, "--to-latest", "--dry-run").json()["queues"]}
    longest = max(queues, key=lambda queue_id: queues[queue_id])

    moved = reset(run, group, topic, "--to-offset", "1", "--queue", f"broker-a/{longest}").json()["queues"]

    assert [(each["queue_id"], each["then"], each["difference"]) for each in moved] == [(longest, 1, 1 - queues[longest])]
    assert run("group", "lag", group, "--topic", topic, "--json").json()["lag"] == queues[longest] - 1


def test_a_dry_run_shows_the_same_and_changes_nothing(run, topic, group):
    planned = reset(run, group, topic, "--to-earliest", "--dry-run").json()

    assert planned["dry_run"]
    assert {queue["then"] for queue in planned["queues"]} == {0}
    assert sum(queue["now"] for queue in planned["queues"]) == -sum(queue["difference"] for queue in planned["queues"]) == 3
    assert run("group", "lag", group, "--json").json()["lag"] == 0
    assert reset(run, group, topic, "--to-earliest").json()["queues"] == planned["queues"]


def test_people_are_told_what_is_consumed_again(run, topic, group):
    shown = run("group", "reset", group, topic, "--to-earliest", "--dry-run").out

    assert "3 messages to consume again, 0 skipped; no member is online" in shown
    assert "would be" in shown


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 2),
        (("--to-earliest", "--to-latest"), 2),
        (("--to-offset", "1", "--to-time", "1h"), 2),
        (("--to-offset", "-1"), 2),
        (("--to-offset", "99"), 2),
        (("--to-offset", "9223372036854775808"), 2),
        (("--to-time", "yesterday"), 2),
        (("--to-time", "999999999999999"), 2),
        (("--to-time", "2200-01-01T00:00:00Z"), 2),
        (("--to-earliest", "--queue", "7"), 2),
        (("--to-earliest", "--queue", "-1"), 2),
        (("--to-earliest", "--queue", "broker-b/0"), 2),
    ],
)
def test_targets_that_cannot_be_are_refused_and_nothing_moves(run, topic, group, options, code):
    assert reset(run, group, topic, *options).code == code

    assert run("group", "lag", group, "--topic", topic, "--json").json()["lag"] == 0


def test_an_unknown_group_is_refused_by_name(run, topic):
    for words in (("show",), ("lag",), ("delete",), ("reset", topic, "--to-earliest"), ("skip", topic, "0", "--offset", "0")):
        ran = run("group", words[0], "C_nobody", *words[1:])

        assert ran.code == 1
        assert "C_nobody" in ran.err


@pytest.mark.parametrize("orderly", [False, True])
def test_a_group_with_a_member_online_consumes_again_from_where_it_was_put(run, topic, cluster, orderly):
    """The member itself is moved: it goes on at the new offset, and what it stores later does not undo it."""
    run("produce", "--topic", topic, "1", "2", "3")
    got: list[bytes] = []
    consumer = PushConsumer(
        group=f"C_{topic}"[:100],
        nameserver=cluster.nameserver,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        persist_offsets_ms=100,
        orderly=orderly,
    )
    consumer.subscribe(topic)
    consumer.on_message(lambda messages: got.extend(message.body for message in messages))
    with consumer:
        until(lambda: len(got) == 3)
        until(lambda: run("group", "lag", consumer.settings.group, "--json").json()["lag"] == 0)
        moved = reset(run, consumer.settings.group, topic, "--to-earliest").json()["queues"]
        until(lambda: len(got) == 6)

    assert sorted(got) == sorted([b"1", b"2", b"3"] * 2)
    assert {each["members"] for each in moved} == {1}


def test_a_group_is_deleted_or_moved_only_when_that_is_confirmed(run, topic, group, at_terminal):
    for words, said in (
        (
            ("delete", group),
            f"delete consumer group {group}, its progress in every topic, 0 messages in its retry topic and 0 dead letters?",
        ),
        (("reset", group, topic, "--to-earliest"), f"move the progress of group {group} in topic {topic} to the oldest message?"),
        (("reset", group, topic, "--to-offset", "0", "--queue", "1"), f"in queue 1 of topic {topic} to offset 0?"),
        (("reset", group, topic, "--to-latest"), f"in topic {topic} to the end, skipping the backlog?"),
        (("reset", group, topic, "--to-time", "2026-01-31T08:00:00Z"), "to 2026-01-31T08:00:00.000Z?"),
    ):
        assert run("group", *words).code == 2
        declined = at_terminal("n\n", "group", *words)
        assert (declined.code, said in declined.err) == (1, True), declined

    assert run("group", "lag", group, topic, "--json").json()["lag"] == 0
    assert at_terminal("y\n", "group", "reset", group, topic, "--to-earliest").code == 0
    assert run("group", "lag", group, topic, "--json").json()["lag"] == 3


@contextmanager
def poisoned(cluster, topic, group):
    """Run an orderly consumer that fails at the second message of a topic with one queue; yields what it was given."""
    seen = []

    def listen(messages):
        seen.extend(message.body for message in messages)
        if messages[0].body == b"poison":
            raise KeyError("price")

    settings = {"orderly": True, "suspend_queue_ms": 200, "persist_offsets_ms": 50, "consume_from": ConsumeFrom.FIRST_OFFSET}
    consumer = PushConsumer(group=group, nameserver=cluster.nameserver, **settings)
    consumer.subscribe(topic)
    consumer.on_message(listen)
    with consumer:
        yield seen


STUCK = r"ueue 0 of {topic} at broker-a is stuck at offset 1: KeyError: 'price', [0-9,]+ tries, [0-9.]+s"


def test_a_message_that_holds_an_ordered_queue_is_found_by_every_command_and_skipped(run, cluster, at_terminal):
    topic = new_topic(cluster.nameserver)
    group, words = f"C_{topic}", STUCK.format(topic=topic)
    run("produce", "--topic", topic, "1", "poison", "3")
    with poisoned(cluster, topic, group) as seen:
        until(lambda: "is stuck" in run("status").out)
        status = run("status")
        assert status.code == 1
        assert re.search(f"degraded\n(  .*\n)*  {group}: q{words}\n", status.out)
        listed = run("group", "list")
        assert re.search(f"{group}: Q{words}", listed.out)
        [row] = [row for row in run("group", "list", "--json").json() if row["group"] == group]
        assert (row["members"], row["lag"], row["redelivery"], row["findings"][0]["kind"]) == (1, 2, 0, "stuck")
        assert re.search(f"blocked: Q{words}", run("group", "show", group).out)
        [finding, *_] = run("group", "show", group, "--json").json()["findings"]
        assert (finding["offset"], finding["reason"], finding["severity"]) == (1, "KeyError: 'price'", "blocked")

        skip = ("group", "skip", group, topic, "0", "--offset", "1", "--to-dead-letters")
        assert run(*skip).code == 2
        declined = at_terminal("n\n", *skip)
        assert "skip the message at offset 1 of queue 0" in declined.err
        assert b"3" not in seen
        skipped = run(*skip, "--yes")
        assert (skipped.code, skipped.out) == (0, f"{group} goes on at offset 2 of queue 0 of {topic}; 1 member is online\n")
        until(lambda: b"3" in seen)
        assert run("group", "skip", group, topic, "0", "--offset", "1", "--yes").code != 0
        until(lambda: run("group", "lag", group, "--json").json()["lag"] == 0)

    assert "skipped by an operator" in run("dlq", "list", group).out
    [letter] = run("dlq", "list", group, "--json").json()["dead_letters"]
    assert letter["tries"] is None, "the broker does not know how often its member tried"
    assert re.search(r" skipped +skipped by an operator", run("dlq", "list", group).out)
    assert re.search(r"tries +not known: it was skipped", run("dlq", "show", letter["id"]).out)


def test_a_message_that_waits_for_its_redelivery_is_behind_and_named(run, cluster):
    topic = new_topic(cluster.nameserver)
    group = f"C_{topic}"
    run("produce", "--topic", topic, "1")
    settings = {"persist_offsets_ms": 50, "consume_from": ConsumeFrom.FIRST_OFFSET}
    consumer = PushConsumer(group=group, nameserver=cluster.nameserver, **settings)
    consumer.subscribe(topic)
    consumer.on_message(lambda messages: ConsumeStatus.RECONSUME_LATER)
    with consumer:
        until(lambda: f"{group} is 1 message behind; 1 message waits to be delivered again" in run("group", "lag", group).out)
        [row] = [row for row in run("group", "list", "--json").json() if row["group"] == group]
        assert (row["lag"], row["redelivery"]) == (1, 1)
        assert run("status", "--json").json()["backlog"][group]["redelivery"] == 1
