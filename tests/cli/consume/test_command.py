"""`halfmoon consume` against a running broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from halfmoon.cli.shared import reading
from halfmoon.cli.shared.options import time_ms
from halfmoon.testing.local import LocalCluster
from tests.store.driving import use_offsets_up
from tests.waiting import until

pytestmark = pytest.mark.slow


def _send(run, topic: str, *bodies: str, tag: str = "A") -> None:
    assert run("produce", "--topic", topic, "--tag", tag, *bodies).code == 0


def _later(run, topic: str) -> int:
    """Return a time behind the store time of every message so far, once the clock shows a later one."""
    last = max(each["store_ms"] for each in run("consume", "--topic", topic, "--json").lines())
    until(lambda: time_ms("0ms") > last + 1)
    return last + 1


def test_looking_shows_what_is_there_and_leaves_no_progress(run, topic):
    _send(run, topic, "1", "2", "3", "4")

    first, second = (run("consume", "--topic", topic, "--json") for _ in range(2))

    assert sorted(each["body"] for each in first.lines()) == ["1", "2", "3", "4"]
    assert len(second.lines()) == 4
    assert run("group", "list", "--topic", topic, "--json").json() == []


def test_looking_at_an_empty_topic_ends_at_once_and_says_so_beside_the_output(run, topic):
    assert run("consume", "--topic", topic) == (0, "", f"topic {topic} is empty\n")
    assert "has no messages where the options begin and end" in run("consume", "--topic", topic, "--since", "1h").err
    assert run("consume", "--topic", topic, "--jsonl") == run("consume", "--topic", topic, "--json") == (0, "", "")


def test_where_no_message_is_shown_standard_error_says_why(run, topic):
    _send(run, topic, "1")

    assert "has messages, but none that the options select" in run("consume", "--topic", topic, "--filter", "B").err
    assert run("consume", "--topic", topic, "--filter", "A").err == ""
    ran = run("consume", "--topic", topic, "--filter", "B", "--group", "C_none", "--idle", "100ms")
    assert f"no message of {topic} came for group C_none within 100ms" in ran.err


def test_a_filter_leaves_only_messages_with_its_tags(run, topic):
    for tag in ("A", "B", "C"):
        _send(run, topic, f"of {tag}", tag=tag)

    found = run("consume", "--topic", topic, "--filter", "A || C", "--json").lines()

    assert sorted(each["body"] for each in found) == ["of A", "of C"]


@pytest.mark.parametrize("way", [[], ["--group", "C_sql", "--idle", "6s"]])
def test_an_sql_expression_leaves_only_messages_whose_properties_match(run, topic, way):
    for amount in range(6):
        arguments = ["--property", f"amount={amount}", f"{amount}"]
        assert run("produce", "--topic", topic, *arguments).code == 0

    ran = run("consume", "--topic", topic, "--sql", "amount BETWEEN 2 AND 4", "--json", *way)

    assert (ran.code, sorted(each["body"] for each in ran.lines())) == (0, ["2", "3", "4"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["--sql", "amount >"], "halfmoon: SQL92 filter, at the end: "), (["--sql", "a = 1", "--filter", "A"], "not both")],
)
def test_a_filter_that_is_none_is_an_error_that_says_why(run, topic, arguments, why):
    _send(run, topic, "1")

    ran = run("consume", "--topic", topic, *arguments)

    assert ran.code != 0
    assert why in ran.err


def test_looking_with_a_filter_that_nothing_matches_ends_at_the_end(run, topic, monkeypatch):
    monkeypatch.setattr(reading, "SILENT_MS", 60_000)
    _send(run, topic, "1", "2")
    begin = time.monotonic()

    assert run("consume", "--topic", topic, "--filter", "Nobody")[:2] == (0, "")
    assert time.monotonic() - begin < 30


def test_count_stops_early(run, topic):
    _send(run, topic, "1", "2", "3")

    assert len(run("consume", "--topic", topic, "--count", "2", "--json").lines()) == 2


def test_since_a_time_leaves_out_what_was_stored_before(run, topic):
    _send(run, topic, "old")
    between = _later(run, topic)
    _send(run, topic, "new", "newer")

    found = run("consume", "--topic", topic, "--since", str(between), "--json").lines()

    assert sorted(each["body"] for each in found) == ["new", "newer"]


def test_a_member_of_a_group_makes_progress(run, topic):
    _send(run, topic, "1", "2", "3")

    first = run("consume", "--topic", topic, "--group", "C_progress", "--count", "3", "--idle", "60s", "--json").lines()
    second = run("consume", "--topic", topic, "--group", "C_progress", "--idle", "500ms", "--json").lines()

    assert sorted(each["body"] for each in first) == ["1", "2", "3"]
    assert second == []


def test_a_member_that_stops_early_has_consumed_only_what_it_showed(run, topic):
    _send(run, topic, "1", "2", "3", "4")

    first = run("consume", "--topic", topic, "--group", "C_early", "--count", "1", "--json").lines()
    rest = run("consume", "--topic", topic, "--group", "C_early", "--count", "3", "--idle", "60s", "--json").lines()

    assert len(first) == 1
    assert sorted(each["body"] for each in [*first, *rest]) == ["1", "2", "3", "4"]


def test_the_first_start_of_a_group_warns_of_nothing(run, topic, caplog):
    _send(run, topic, "1")

    assert len(run("consume", "--topic", topic, "--group", "C_first", "--count", "1", "--json").lines()) == 1

    # publishers that another test left may still talk to its database
    warnings = [record for record in caplog.records if record.levelname == "WARNING" and record.name != "halfmoon.events"]
    assert [record.getMessage() for record in warnings] == []


def test_a_message_that_could_not_be_shown_is_not_consumed(run, topic, monkeypatch):
    _send(run, topic, "1", "2", "3")
    shown = []

    def until_it_is_interrupted(value):
        if len(shown) == 1:
            raise KeyboardInterrupt
        shown.append(value["body"])

    with monkeypatch.context() as broken:
        broken.setattr("halfmoon.cli.consume.command.show_json", until_it_is_interrupted)
        run("consume", "--topic", topic, "--group", "C_pipe", "--idle", "6s", "--json")
    rest = run("consume", "--topic", topic, "--group", "C_pipe", "--idle", "6s", "--count", "2", "--json").lines()

    assert len(shown) == 1
    assert sorted([*shown, *(each["body"] for each in rest)]) == ["1", "2", "3"]


def test_people_see_the_place_the_tag_and_the_body(run, topic):
    _send(run, topic, "hello\tworld", tag="greeting")

    ran = run("consume", "--topic", topic)

    assert "[greeting] hello·world" in ran.out


@pytest.mark.parametrize("since", ["yesterday", "5 weeks", "2026-13-01"])
def test_a_time_that_is_none_is_a_usage_error(run, topic, since):
    ran = run("consume", "--topic", topic, "--since", since)

    assert ran.code == 2


def test_an_unknown_topic_is_refused(run):
    assert run("consume", "--topic", "nobody_knows").code == 1


def test_following_shows_what_comes_until_it_is_interrupted(run, topic, cluster):
    command = [sys.executable, "-m", "halfmoon.cli.main", "consume", "--topic", topic, "--follow", "--json"]
    environment = {**os.environ, "NAMESRV_ADDR": cluster.nameserver}
    _send(run, topic, "before")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            shown = [json.loads(process.stdout.readline())["body"]]
            _send(run, topic, "after")
            shown.append(json.loads(process.stdout.readline())["body"])
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        finally:
            process.kill()

    assert shown == ["before", "after"]
    assert code == 0


@pytest.mark.parametrize("way", [[], ["C_head"]])
def test_following_ends_once_nobody_reads_even_where_no_message_comes(run, topic, cluster, way):
    command = [sys.executable, "-m", "halfmoon.cli.main", "consume", topic, *way, "--follow", "-n", cluster.nameserver]
    _send(run, topic, "the only one")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline().endswith("the only one\n")
            process.stdout.close()
            assert process.wait(60) == 1
            assert process.stderr.read() == (f"waiting for messages of {topic}, until Ctrl-C\n" if way else "")
        finally:
            process.kill()


@pytest.mark.parametrize("way", [[], ["--group", "C_missing"]])
def test_a_topic_that_is_not_there_is_said_to_be_missing_with_near_names(run, topic, way):
    ran = run("consume", "--topic", topic + "x", *way)

    assert (ran.code, ran.out) == (1, "")
    assert f"there is no topic {topic}x" in ran.err
    assert f"did you mean '{topic}'" in ran.err


@pytest.mark.parametrize("way", [[], ["--group", "C_dead"]])
def test_a_name_server_that_cannot_be_reached_is_named_with_the_reason(run_alone, way):
    ran = run_alone("consume", "--topic", "orders", "--nameserver", "127.0.0.1:9", *way)

    assert (ran.code, ran.out) == (1, "")
    assert "connect to 127.0.0.1:9 failed: Connection refused" in ran.err


@pytest.mark.parametrize("way", [[], ["--group", "C_filter"]])
def test_a_filter_that_is_no_list_of_tags_is_refused(run_alone, way):
    ran = run_alone("consume", "--topic", "orders", "--filter", "a && b", "--nameserver", "127.0.0.1:9", *way)

    assert ran.code == 2
    assert "--sql" in ran.err


@pytest.mark.slow
def test_following_says_when_the_broker_is_away_and_nothing_of_its_own_housekeeping(tmp_path):
    with LocalCluster(tmp_path / "store") as cluster:
        environment = {**os.environ, "NAMESRV_ADDR": cluster.nameserver}
        command = [sys.executable, "-m", "halfmoon.cli.main"]
        subprocess.run([*command, "produce", "orders", "body"], env=environment, check=True, stdout=subprocess.DEVNULL)
        process = subprocess.Popen(
            [*command, "consume", "orders", "C_follow", "--follow"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
    waiting, said = process.stderr.readline(), process.stderr.readline()
    process.send_signal(signal.SIGINT)
    rest, more = process.communicate(timeout=120)

    assert (process.returncode, first.endswith(" body\n"), rest) == (0, True, "")
    assert waiting == "waiting for messages of orders, until Ctrl-C\n"
    assert "trying again" in said
    assert "offset not stored" not in more


def test_an_empty_topic_is_no_failure_unless_that_is_asked_for(run, topic):
    assert run("consume", topic)[:2] == (0, "")
    assert run("consume", topic, "--fail-if-empty")[:2] == (1, "")
    _send(run, topic, "body")
    assert run("consume", topic, "--fail-if-empty").code == 0


@pytest.mark.parametrize("command", [["consume"], ["msg", "dump"]])
def test_a_topic_that_cannot_be_read_to_its_end_is_an_error_and_not_an_empty_one(run, cluster, topic, command):
    _send(run, topic, "1", "2", "3", "4")
    assert run("topic", "create", topic, "--perm", "2").code == 0

    ran = run(*command, "--topic", topic, "--nameserver", cluster.nameserver)

    assert (ran.code, ran.out) == (1, "")
    assert re.search(rf"topic {topic} was not read to its end: broker-a/\d stopped at 0 of \d, one of 2 such queues", ran.err)


def _bodies(ran) -> list[str]:
    assert ran.code == 0, ran.err
    return [each["body"] for each in ran.lines()]


def test_the_last_messages_are_the_newest_of_all_queues_in_the_order_of_their_storage(run, topic):
    for number in range(5):
        _send(run, topic, f"{number}", tag="even" if number % 2 == 0 else "odd")
        _later(run, topic)

    assert _bodies(run("consume", topic, "--last", "3", "--json")) == ["2", "3", "4"]
    assert _bodies(run("consume", topic, "--last", "3", "--filter", "odd", "--json")) == ["3"]
    assert len(_bodies(run("consume", topic, "--last", "100", "--json"))) == 5


def test_a_queue_is_read_between_two_offsets(run, topic):
    run("produce", topic, "--order-key", "one queue", *"abcde")
    (queue,) = {each["queue_id"] for each in run("consume", topic, "--json").lines()}

    span = ("--queue", f"broker-a/{queue}", "--offset", "1", "--until", "4")
    assert _bodies(run("consume", topic, *span, "--json")) == ["b", "c", "d"]
    assert _bodies(run("consume", topic, "--queue", str(1 - queue), "--json")) == []
    assert run("consume", topic, "--queue", "9").code == 2


def test_following_has_no_end_at_an_offset(run, topic):
    ran = run("consume", topic, "--follow", "--until", "4")

    assert ran.code == 2
    assert "leave --follow out, or give a time" in " ".join(ran.err.split())


def test_reading_ends_before_a_time(run, topic):
    _send(run, topic, "before", "before")
    between = _later(run, topic)
    _send(run, topic, "after", "after")

    assert _bodies(run("consume", topic, "--until", str(between), "--json")) == ["before", "before"]
    assert _bodies(run("consume", topic, "--until", "1d", "--json")) == []


def test_following_ends_at_a_time_that_comes(run, topic):
    _send(run, topic, "1")
    begin = time.monotonic()

    soon = str(time.time_ns() // 1_000_000 + 1500)
    assert _bodies(run("consume", topic, "--follow", "--until", soon, "--json")) == ["1"]
    assert 1 < time.monotonic() - begin < 20


def test_a_format_writes_tokens_and_escapes(run, topic):
    run("produce", topic, "--key", "o-1", "--key", "訂單", "--tag", "paid", "--property", "a=b", "--order-key", "x", "hé")
    (sent,) = run("consume", topic, "--json").lines()

    ran = run("consume", topic, "--format", "%k|%t|%g|%b|%B|%i|%r|%p|%o|%T|%%\\t\\x41\\\\\\n")

    assert ran.out == (f"o-1 訂單|{topic}|paid|hé|3|{sent['msg_id']}|broker-a|{sent['queue_id']}|0|{sent['store_ms']}|%\tA\\\n")
    assert "a=b" in run("consume", topic, "--format", "%h").out
    assert run("consume", topic, "--bodies").out == "hé\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--format", "%z"), "%z is unknown; use %b body"),
        (("--format", "\\q"), "\\q is no escape"),
        (("--format", "\\x4"), "is no escape"),
        (("--format", "%b", "--json"), "give one of --format, --bodies and --json"),
        (("--last", "1", "--offset", "2"), "give one of --since, --last and --offset"),
        (("--last", "1", "--group", "G"), "leave --group out"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_reason(run, topic, arguments, why):
    ran = run("consume", topic, *arguments)

    assert ran.code == 2
    assert why in " ".join(ran.err.split())


def _with_a_gap(run, topic, cluster, count: int) -> None:
    """Send a to e into one queue, with so many offsets without a message before d, as after a power loss."""
    run("produce", topic, "--order-key", "one queue", *"abc")
    (queue,) = {each["queue_id"] for each in run("consume", topic, "--json").lines()}
    use_offsets_up(cluster._programs[1].broker.store, topic, queue, count)
    run("produce", topic, "--order-key", "one queue", *"de")


@pytest.mark.parametrize("count", [1, 10, 3000])
def test_offsets_without_a_message_do_not_count_among_the_last(run, topic, cluster, count):
    _with_a_gap(run, topic, cluster, count)

    for last in range(1, 7):
        assert _bodies(run("consume", topic, "--last", str(last), "--json")) == [*"abcde"][-last:]
    assert _bodies(run("consume", topic, "--last", "4", "--filter", "*", "--follow", "--count", "4", "--json")) == [*"bcde"]
    (row,) = (each for each in run("topic", "list", "--jsonl").lines() if each["name"] == topic)
    assert row["messages"] == 5


def test_reading_from_an_offset_without_a_message_begins_with_the_next_one(run, topic, cluster):
    _with_a_gap(run, topic, cluster, 3000)

    assert _bodies(run("consume", topic, "--offset", "5", "--json")) == ["d", "e"]
    assert _bodies(run("consume", topic, "--offset", "2", "--until", "2000", "--json")) == ["c"]
