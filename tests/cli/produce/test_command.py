"""`halfmoon produce` against a running broker."""

from __future__ import annotations


def _bodies(run, topic: str) -> list[str]:
    return sorted(each["body"] for each in run("consume", "--topic", topic, "--json").lines())


def test_each_argument_is_a_message(run, topic):
    sent = run(
        "produce", "--topic", topic, "--tag", "paid", "--key", "k1", "--key", "k2", "--property", "a=b", "one", "two", "--json"
    )
    found = run("consume", "--topic", topic, "--json").lines()

    assert [each["status"] for each in sent.lines()] == ["SEND_OK", "SEND_OK"]
    assert sorted(each["body"] for each in found) == ["one", "two"]
    assert {(each["tag"], tuple(each["keys"]), each["properties"]["a"]) for each in found} == {("paid", ("k1", "k2"), "b")}
    assert {each["msg_id"] for each in found} == {each["msg_id"] for each in sent.lines()}


def test_each_line_of_standard_input_is_a_message_and_empty_lines_are_none(run, topic):
    ran = run("produce", "--topic", topic, stdin=b"one\r\n\ntwo\nthree")

    assert ran.code == 0
    assert _bodies(run, topic) == ["one", "three", "two"]


def test_a_file_is_sent_line_by_line_or_whole(run, topic, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"a\nb\n")

    run("produce", "--topic", topic, "--file", file)
    run("produce", "--topic", topic, "--file", file, "--whole")

    assert _bodies(run, topic) == ["a", "a\nb\n", "b"]


def test_messages_of_one_order_key_go_to_one_queue(run, topic):
    sent = run("produce", "--topic", topic, "--order-key", "o-1", "--count", "2", "a", "b", "c", "--json").lines()

    assert len({each["queue_id"] for each in sent}) == 1
    assert [each["queue_offset"] for each in sent] == list(range(6))


def test_count_sends_each_message_so_many_times(run, topic):
    run("produce", "--topic", topic, "--count", "3", "x")

    assert _bodies(run, topic) == ["x", "x", "x"]


def test_a_body_that_is_no_text_is_shown_as_hexadecimal(run, topic):
    run("produce", "--topic", topic, "--whole", stdin=b"\xff\x00")

    (found,) = run("consume", "--topic", topic, "--json").lines()
    assert (found["body"], found["body_hex"]) == (None, "ff00")


def test_nothing_to_send_is_an_error(run, topic):
    assert run("produce", "--topic", topic, stdin=b"\n").code == 1


def test_a_property_without_a_value_or_with_a_reserved_name_is_a_usage_error(run, topic):
    for given in ("nothing", "TAGS=x"):
        assert run("produce", "--topic", topic, "--property", given, "x").code == 2


def test_arguments_and_a_file_exclude_each_other(run, topic, tmp_path):
    (tmp_path / "f").write_text("x")

    assert run("produce", "--topic", topic, "--file", tmp_path / "f", "x").code == 2


def test_a_dash_is_standard_input(run, topic):
    assert run("produce", topic, "-", stdin=b"one\ntwo\n").code == 0
    assert _bodies(run, topic) == ["one", "two"]


def test_each_line_has_its_key_before_a_delimiter(run, topic):
    assert run("produce", topic, "-", "--key-delimiter", ":", "--key", "all", stdin="o-1:a:b\n訂單:c\n".encode()).code == 0

    found = run("consume", "--topic", topic, "--json").lines()
    assert sorted((each["body"], tuple(each["keys"])) for each in found) == [("a:b", ("all", "o-1")), ("c", ("all", "訂單"))]


def test_a_line_is_sent_whole_or_not_at_all_however_long_its_key_and_body_are(run, topic, monkeypatch):
    monkeypatch.setattr("halfmoon.cli.produce.command.BODY_BYTES_MAX", 100)
    monkeypatch.setattr("halfmoon.cli.produce.command.PROPERTIES_BYTES_MAX", 50)
    fits = b"a" * 40 + b":" + b"b" * 100

    assert run("produce", topic, "-", "--key-delimiter", ":", stdin=fits + b"\n").code == 0
    assert _bodies(run, topic) == ["b" * 100]


def test_a_line_without_the_key_delimiter_is_refused_by_its_number(run, topic):
    ran = run("produce", topic, "-", "--key-delimiter", "\\t", stdin=b"k\tone\ntwo\n")

    assert ran.code == 2
    assert "message 2 does not contain the key delimiter" in ran.err
    assert _bodies(run, topic) == ["one"]
    assert run("produce", topic, "-", "--key-delimiter", "", stdin=b"one").code == 2
