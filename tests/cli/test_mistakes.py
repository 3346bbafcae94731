"""Frequent mistakes at a command line: the error names what is wrong, and what to do."""

from __future__ import annotations

import socket

import pytest


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "show"), ("topic", "delete"), ("topic", "trim", "--offset", "0"), ("group", "skip", "C_m", 0, "--offset", "0"),
        ("group", "reset", "C_m", "--to-latest"), ("msg", "get", "ABC"), ("msg", "resend", "ABC"), ("msg", "find", "--key", "a"),
        ("consume",), ("bench", "pull"),
    ],
    ids=lambda words: " ".join(map(str, words[:2])),
)  # fmt: skip
def test_a_topic_that_is_not_there_is_named_with_those_spelt_alike(run, topic, words):
    assert run("group", "create", "C_m").code == 0

    ran = run(*words, "--topic", f"{topic}x", *(["--yes"] if words[0] in ("topic", "group") and words[1] != "show" else []))

    assert ran.code != 0
    assert f"there is no topic {topic}x; did you mean '{topic}'" in ran.err


@pytest.mark.parametrize("words", [("show",), ("lag",), ("delete", "--yes")], ids=lambda words: words[0])
def test_a_group_that_is_not_there_is_named_with_those_spelt_alike(run, words):
    assert run("group", "create", "C_mistaken").code == 0

    assert "no broker knows a consumer group 'C_mistakn'; did you mean 'C_mistaken'" in run("group", *words, "C_mistakn").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("topic", "create", "x", "--queues", "many"), "'many' is not a valid whole number"),
        (("msg", "get", "ABC"), "for the sender's id, give its topic as well: --topic"),
        (("dlq", "show", "ABC"), "for the sender's id, give its group as well"),
        (("tx", "resume", "ABC"), "'ABC' is not a broker's message id, which has 32 or 56 hexadecimal digits"),
        (("produce", "orders"), "nothing to send: give a BODY, --file, or lines on standard input"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_value_of_the_wrong_kind_is_named_with_the_right_kind(run, words, said):
    ran = run(*words)

    assert ran.code != 0
    assert said in " ".join(ran.err.split())


def test_a_queue_that_is_not_there_is_named_with_those_that_are(run, topic):
    said = run("consume", topic, "--queue", "7").err

    assert "queue 7: the topic has no such queue, but broker-a/0, broker-a/1" in " ".join(said.split())


@pytest.mark.parametrize("words", [("topic", "list"), ("produce", "orders", "x"), ("consume", "orders"), ("status",)], ids=" ".join)
def test_where_no_name_server_answers_the_next_steps_are_named(run_alone, words):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        ran = run_alone(*words, "--nameserver", f"127.0.0.1:{taken.getsockname()[1]}")

    assert ran.code == 1
    assert "Connection refused" in ran.out + ran.err
    assert "--nameserver HOST:PORT, or start one: halfmoon serve; halfmoon doctor says what is wrong\n" in ran.out + ran.err


def test_a_server_that_does_not_answer_is_named_with_the_time_that_it_was_given(run_alone):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ran = run_alone("topic", "list", "--nameserver", address)

    assert f"no answer from {address} within 5,000 ms" in ran.err
