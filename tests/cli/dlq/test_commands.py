"""`halfmoon dlq` against a running broker: what a real consumer gave up is listed, shown, edited and sent again, once."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial

import pytest

from halfmoon import Admin, ConsumeContext, ConsumeFrom, PushConsumer
from halfmoon.cli.dlq import commands as dlq
from tests.spark.waiting import Clock
from tests.waiting import until

pytestmark = pytest.mark.slow


class Shop:
    """A group that gives everything up at once until ``works`` is set, and what it consumed then."""

    def __init__(self, cluster, topic, group="C_shop"):
        self.works, self.got, self.lock = False, [], threading.Lock()
        self.consumer = PushConsumer(group=group, nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
        self.consumer.subscribe(topic)
        self.consumer.on_message(self.handle)

    def handle(self, messages, context: ConsumeContext):
        if not self.works:
            context.delay_level = -1
            raise TimeoutError(f"no bank for {messages[0].keys[0]}")
        with self.lock:
            self.got += messages


@contextmanager
def shop(cluster, topic, group="C_shop"):
    found = Shop(cluster, topic, group)
    with found.consumer:
        yield found


def dead(run, *options):
    return run("dlq", "list", *options, "--json").json()["dead_letters"]


def has(run, group, key):
    return dead(run, "--group", group, "--key", key)


@pytest.fixture
def given_up(run, topic, cluster):
    """Two dead letters of a group of this test's own, and that group."""
    group = f"C_{topic}"[:60]
    with shop(cluster, topic, group) as found:
        for key, tag, amount in (("k1", "A", 7), ("k2", "B", 700)):
            sent = run("produce", "--topic", topic, "--key", key, "--tag", tag, "--property", f"amount={amount}", f"body {key}")
            assert sent.code == 0
            until(partial(has, run, group, key))
        found.group = group
        yield found


def test_what_a_group_gave_up_is_listed_with_its_reason_and_shown_whole(run, topic, given_up):
    found = dead(run, "--group", given_up.group)

    assert [(one["keys"], one["topic"], one["tries"], one["reason"]) for one in found] == [
        ("k1", topic, 1, "TimeoutError: no bank for k1"),
        ("k2", topic, 1, "TimeoutError: no bank for k2"),
    ]
    assert all(one["replayed_to"] == [] for one in found)
    text = run("dlq", "list", "--group", given_up.group).out
    assert "TimeoutError: no bank for k1" in text
    assert found[0]["id"] in text
    shown = run("dlq", "show", found[0]["id"]).out
    assert "body k1" in shown
    assert "amount=7" in shown
    by_sender = run("dlq", "show", found[1]["msg_id"], "--group", given_up.group, "--json").json()
    assert (by_sender["id"], by_sender["message"]["body"]) == (found[1]["id"], "body k2")


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--key", "k2"], ["k2"]),
        (["--reason", "FOR K1"], ["k1"]),
        (["--filter", "A || C"], ["k1"]),
        (["--sql", "amount > 100"], ["k2"]),
        (["--since", "1h"], ["k1", "k2"]),
        (["--until", "1h"], []),
        (["--limit", "1"], ["k1"]),
    ],
)
def test_dead_letters_are_chosen(run, given_up, options, keys):
    ran = run("dlq", "list", "--group", given_up.group, *options, "--json")

    assert [one["keys"] for one in ran.json()["dead_letters"]] == keys
    assert ran.code == 0
    assert ran.json()["more"] == ("--limit" in options)


def test_all_groups_are_listed_without_a_group(run, given_up):
    assert {given_up.group} <= {one["group"] for one in dead(run)}


def test_a_replay_goes_to_the_group_once_and_says_so(run, topic, cluster, given_up):
    first, _ = dead(run, "--group", given_up.group)
    with shop(cluster, topic, f"D_{topic}"[:60]) as other:
        other.works = True
        until(lambda: len(other.got) == 2)
        given_up.works = True

        would = run("dlq", "replay", "--group", given_up.group, "--key", "k1", "--dry-run", "--json").json()
        sent = run("dlq", "replay", "--group", given_up.group, "--key", "k1", "--yes", "--json").json()
        until(lambda: given_up.got)
        repeated = run("dlq", "replay", first["id"], "--yes", "--json").json()
        with Admin(nameserver=cluster.nameserver) as admin:
            (retry,) = admin.topic_stats(f"%RETRY%{given_up.group}").values()

        assert retry.max_offset == 1  # the broker has one copy for the group
        assert [(one["outcome"], one["copy"]) for one in would["replays"]] == [("would be sent", None)]
        assert [one["outcome"] for one in sent["replays"]] == ["sent"]
        assert [(one["outcome"], one["copy"]) for one in repeated["replays"]] == [("replayed before", sent["replays"][0]["copy"])]
        [message] = given_up.got
        assert len(other.got) == 2
    assert (message.topic, message.body, message.reconsume_times, message.msg_id) == (topic, b"body k1", 0, first["msg_id"])
    assert message.properties["DEAD_LETTER_ID"] == first["id"]
    assert message.properties["ORIGIN_MESSAGE_ID"] == first["origin_id"]
    assert dead(run, "--group", given_up.group, "--key", "k1")[0]["replayed_to"] == [f"%RETRY%{given_up.group}"]
    again = run("dlq", "replay", first["id"], "--yes", "--again", "--json").json()
    assert again["replays"][0]["outcome"] == "sent"
    until(lambda: len(given_up.got) == 2)


def test_a_replay_may_be_edited_and_go_to_the_topic(run, topic, cluster, given_up, tmp_path):
    (tmp_path / "body").write_bytes(b"mended" * 2000)
    given_up.works = True

    ran = run(
        "dlq", "replay", "--group", given_up.group, "--sql", "amount = 700", "--to", topic, "--yes", "--json",
        "--edit", "tag=C", "--edit", f"body=@{tmp_path / 'body'}", "--edit", "amount=", "--edit", "by=Ada", "--edit", "keys=k2 k3",
    )  # fmt: skip

    assert [one["to"] for one in ran.json()["replays"]] == [topic]
    [message] = until(lambda: given_up.got)
    assert (message.body, message.tag, message.keys) == (b"mended" * 2000, "C", ("k2", "k3"))
    assert message.properties["by"] == "Ada"
    assert not message.properties.keys() & {"amount", "RETRY_TOPIC"}
    assert run("dlq", "replay", "--group", given_up.group, "--key", "k2", "--to", topic, "--yes", "--json").json()["replays"][0][
        "outcome"
    ] == "replayed before"  # fmt: skip


def test_a_replay_that_fails_again_is_a_dead_letter_of_its_own(run, given_up):
    [first] = dead(run, "--group", given_up.group, "--key", "k1")
    assert run("dlq", "replay", first["id"], "--yes").code == 0

    until(lambda: len(has(run, given_up.group, "k1")) == 2)

    both = has(run, given_up.group, "k1")
    assert both[0]["id"] == first["id"]
    assert both[1]["replay_of"] == first["id"]
    assert both[1]["replayed_to"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["replay", "--yes"], 2, "give IDs, or choose"),
        (["replay", "7F00", "--key", "k", "--yes"], 2, "give IDs, or choose"),
        (["replay", "--group", "C_nobody"], 2, "Not done. Add --yes to"),
        (["replay", "--group", "C_nobody", "--yes"], 0, ""),
        (["replay", "--group", "C_nobody", "--yes", "--fail-if-empty"], 1, ""),
        (["replay", "7F00", "--yes"], 1, "there is no dead letter"),
        (["show", "nothing"], 1, "there is no dead letter"),
        (["show", "nothing", "--group", "C_nobody"], 1, "there is no dead letter"),
        (["list", "--group", "C_nobody"], 0, ""),
        (["list", "C_nobody", "--fail-if-empty"], 1, ""),
        (["list", "--sql", "a >"], 2, ""),
        (["list", "--sql", "a > 1", "--filter", "A"], 2, "not both"),
        (["replay", "--group", "g", "--yes", "--edit", "tag"], 2, "NAME=VALUE"),
        (["replay", "--group", "g", "--yes", "--edit", "body=@/nowhere/at/all"], 2, "cannot be read"),
        (["list", "--since", "yesterday"], 2, "is not a time"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_word(run, arguments, code, word):
    ran = run("dlq", *arguments)

    assert (ran.code, word in ran.err) == (code, True), ran


def test_a_dead_letter_of_another_group_is_none_of_this_one_though_their_names_begin_alike(run, cluster, given_up):
    begin = given_up.group[:-1]
    assert run("topic", "create", f"%DLQ%{begin}").code == 0
    theirs = dead(run, "--group", given_up.group)[0]["id"]

    ran = run("dlq", "show", theirs, "--group", begin)

    assert (ran.code, "is no dead letter" in ran.err) == (1, True), ran


def test_an_ordinary_message_is_no_dead_letter(run, topic):
    sent = run("produce", "--topic", topic, "--json", "x").json()

    ran = run("dlq", "replay", sent["offset_msg_id"], "--yes")

    assert (ran.code, "is no dead letter" in ran.err) == (1, True)


@pytest.mark.parametrize("edit", ["DELAY=3", "UNIQ_KEY=x", "DEAD_LETTER_ID=", "TRAN_MSG=true"])
def test_properties_of_the_protocol_are_not_edited(run, given_up, edit):
    ran = run("dlq", "replay", "--group", given_up.group, "--yes", "--edit", edit, "--json")

    assert ran.code == 1
    assert all("belong to the protocol" in one["outcome"] for one in ran.json()["replays"])
    assert dead(run, "--group", given_up.group)[0]["replayed_to"] == []


def test_a_rate_is_kept_and_time_that_a_send_lost_is_not_made_up_for(monkeypatch):
    clock, sent = Clock(), []
    monkeypatch.setattr(dlq, "time", clock)
    for number in dlq.paced(range(4), 2.0):
        sent.append(clock.now)
        clock.now += 7 if number == 1 else 0.01

    assert sent == pytest.approx([100.0, 100.5, 107.5, 108.0])
    assert list(dlq.paced(range(3), None)) == [0, 1, 2]
