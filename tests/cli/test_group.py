"""`halfmoon group` against a running broker."""

from __future__ import annotations

import pytest

from halfmoon import ConsumeFrom, PullConsumer


@pytest.fixture
def group(run, topic, request):
    """A group that consumed three messages of the topic and then went away."""
    name = f"C_{topic}"[:100]
    run("produce", "--topic", topic, "1", "2", "3")
    run("consume", "--topic", topic, "--group", name, "--count", "3")
    return name


def test_a_group_is_made_listed_and_deleted(run):
    assert run("group", "create", "C_made").code == 0
    assert "C_made" in run("group", "list", "--json").json()
    assert run("group", "delete", "C_made").code == 0
    assert "C_made" not in run("group", "list", "--json").json()


def test_groups_of_the_protocol_are_listed_when_asked_for(run):
    assert "TOOLS_CONSUMER" not in run("group", "list", "--json").json()
    assert "TOOLS_CONSUMER" in run("group", "list", "--all", "--json").json()


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


def test_reset_moves_a_group_to_the_first_to_the_last_and_to_a_time(run, topic, group):
    for option, lag in ((("--to-first",), 3), (("--to-last",), 0), (("--to-time", "1h"), 3)):
        moved = run("group", "reset", group, "--topic", topic, *option, "--json")

        assert moved.code == 0
        assert run("group", "lag", group, "--topic", topic, "--json").json()["lag"] == lag


def test_a_dry_run_shows_the_same_and_changes_nothing(run, topic, group):
    planned = run("group", "reset", group, "--topic", topic, "--to-first", "--dry-run", "--json").json()

    assert planned["dry_run"]
    assert {queue["to"] for queue in planned["queues"]} == {0}
    assert sum(queue["from"] for queue in planned["queues"]) == 3
    assert run("group", "lag", group, "--json").json()["lag"] == 0


def test_reset_wants_exactly_one_target(run, topic, group):
    assert run("group", "reset", group, "--topic", topic).code == 2
    assert run("group", "reset", group, "--topic", topic, "--to-first", "--to-last").code == 2


def test_an_unknown_group_is_refused_by_name(run, topic):
    for words in (("show",), ("lag",), ("delete",), ("reset", "--topic", topic, "--to-first")):
        ran = run("group", words[0], "C_nobody", *words[1:])

        assert ran.code == 1
        assert "C_nobody" in ran.err
