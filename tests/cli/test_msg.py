"""`halfmoon msg` against a running broker."""

from __future__ import annotations

import pytest


@pytest.fixture
def sent(run, topic):
    """Two messages with keys."""
    one = run("produce", "--topic", topic, "--tag", "A", "--key", "k1", "--json", "one").json()
    two = run("produce", "--topic", topic, "--tag", "B", "--key", "k1", "--key", "k2", "--json", "two").json()
    return one, two


def test_a_message_is_found_by_the_senders_id_and_by_the_brokers(run, topic, sent):
    one, _ = sent

    by_senders = run("msg", "get", one["msg_id"], "--topic", topic, "--json").json()
    by_brokers = run("msg", "get", one["offset_msg_id"], "--json").json()

    assert by_senders["body"] == by_brokers["body"] == "one"
    assert by_senders["broker"] == by_brokers["broker"] == "broker-a"


def test_a_message_is_found_by_its_place(run, topic, sent):
    _, two = sent
    place = ("--broker", two["broker"], "--queue", str(two["queue_id"]), "--offset", str(two["queue_offset"]))

    assert run("msg", "get", "--topic", topic, *place, "--json").json()["body"] == "two"
    assert run("msg", "get", topic, *place, "--json").json()["body"] == "two"


def test_messages_are_found_by_key(run, topic, sent):
    def bodies(key: str) -> list[str]:
        return sorted(each["body"] for each in run("msg", "find", "--topic", topic, "--key", key, "--json").json())

    assert bodies("k1") == ["one", "two"]
    assert bodies("k2") == ["two"]


def test_messages_are_found_by_time_and_tag(run, topic, sent):
    found = run("msg", "find", "--topic", topic, "--since", "1h", "--filter", "B", "--json").json()

    assert [each["body"] for each in found] == ["two"]
    assert run("msg", "find", "--topic", topic, "--until", "1h", "--json").json() == []


def test_people_see_a_whole_message(run, topic, sent):
    ran = run("msg", "get", sent[0]["msg_id"], "--topic", topic)

    assert "tag              A" in ran.out
    assert "body             one" in ran.out


def test_what_is_asked_for_by_name_and_not_there_is_exit_code_1(run, topic, sent):
    assert run("msg", "get", "0" * 32, "--topic", topic).code == 1
    assert run("msg", "get", "--topic", topic, "--broker", "broker-a", "--queue", "0", "--offset", "99").code == 1


def test_half_a_place_or_no_question_is_a_usage_error(run, topic):
    assert run("msg", "get").code == 2
    assert run("msg", "get", "--topic", topic, "--queue", "0", "--offset", "0").code == 2
    assert run("msg", "find", "--topic", topic).code == 2


def test_nothing_that_is_found_is_no_failure_unless_that_is_asked_for(run, topic, sent):
    search = ("msg", "find", topic, "--key", "none")

    assert run(*search) == (0, "none\n", "")
    assert run(*search, "--json") == (0, "[]\n", "")
    assert run(*search, "--fail-if-empty").code == 1
    assert run("msg", "find", topic, "--key", "k1", "--fail-if-empty").code == 0
