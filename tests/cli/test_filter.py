"""`halfmoon filter explain`: the tree, the cost, and which messages pass."""

from __future__ import annotations

import json

import pytest

EXPRESSION = "a > 5 AND b IN ('x', 'y')"


def test_the_tree_the_properties_and_the_cost_are_shown(run_alone):
    ran = run_alone("filter", "explain", EXPRESSION)

    assert ran.code == 0
    assert ran.out.splitlines() == [
        "AND",
        "  a > 5   (a read as a whole number of 32 bits)",
        "  b IN ('x', 'y')",
        "",
        "reads      a, b",
        "cost       at most 11 steps a message, of 0.1 to 0.2 microseconds where properties are short",
    ]


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("NOT a = TRUE", ["=", "  NOT", "    a   (a bare property is never true)", "  TRUE"]),
        ("a <> b", ["NOT", "  a = b"]),
        ("a NOT BETWEEN -1 AND 2.5", ["OR", "  a < -1   (a read as a whole number of 32 bits)",
                                      "  a > 2.5   (a read as a floating-point number)"]),
        ("a >= b", ["a >= b   (both read as floating-point numbers)"]),
        ("a > 2147483648", ["a > 2147483648   (a read as a whole number of 64 bits)"]),
        ("a = FALSE", ["a = FALSE   (a read as true or false)"]),
        ("a IS NOT NULL", ["NOT", "  a IS NULL"]),
        ("(a = '1') IS NULL", ["IS NULL", "  a = '1'"]),
        ("a NOT STARTSWITH 'it''s'", ["a NOT STARTSWITH 'it''s'"]),
        ("a NOT IN ('1','2','3','4','5','6','7','8','9')", ["a NOT IN ('1', '2', '3', '4', '5', '6', '7', '8', … 9 texts)"]),
        ("NULL", ["NULL"]),
    ],
)  # fmt: skip
def test_a_tree_says_how_an_expression_is_read(run_alone, expression, shown):
    assert run_alone("filter", "explain", expression).out.split("\n\n")[0].splitlines() == shown


def test_a_condition_that_says_the_same_of_every_message_is_reported(run_alone):
    said = "'TAGS' = 'a' reads no property and is always false; the name of a property has no quotes"

    assert run_alone("filter", "explain", "'TAGS' = 'a'").out.splitlines()[-1] == f"warning    {said}"
    assert json.loads(run_alone("filter", "explain", "'TAGS' = 'a'", "--json").out)["constants"] == [said]


def test_given_properties_are_tried(run_alone):
    passing = run_alone("filter", "explain", EXPRESSION, "--property", "a=7", "-p", "b=y")
    unfit = run_alone("filter", "explain", EXPRESSION, "-p", "a=6.5", "-p", "b=y")

    assert "1 of 1 message pass" in passing.out
    assert "'6.5' is not a whole number of 32 bits" in unfit.out
    assert "0 of 1 message pass (1 unfit)" in unfit.out
    assert (passing.code, unfit.code) == (0, 0)


def test_messages_of_a_file_are_tried(run_alone, tmp_path):
    file = tmp_path / "messages.jsonl"
    messages = [
        {"topic": "orders", "properties": {"a": "7", "b": "x"}},
        {"a": 7, "b": "x"},
        {"a": 6.5, "b": "x", "c": True, "d": None},
        {"b": "x"},
        {"a": 7, "b": "z"},
    ]
    file.write_text("\n".join(map(json.dumps, messages)) + "\n\n")

    found = run_alone("filter", "explain", EXPRESSION, "--messages", file, "--json", "--show", "3").json()

    assert (found["messages"], found["matching"]) == (5, 2)
    assert found["results"] == {"true": 2, "false": 1, "null": 1, "unfit": 1}
    assert [each["result"] for each in found["shown"]] == ["true", "true", "unfit"]
    assert (found["names"], found["steps"]) == (["a", "b"], 11)
    assert found["tree"][0] == {"depth": 0, "text": "AND"}
    assert found["nanoseconds_a_message"] is None


def test_messages_come_over_standard_input_and_with_many_the_time_is_told(run_alone):
    lines = b"".join(b'{"a":%d}\n' % (number % 10) for number in range(2500))

    ran = run_alone("filter", "explain", "a > 8", "--messages", "-", stdin=lines)

    assert "250 of 2,500 messages pass (2,250 false); " in ran.out
    assert ran.out.rstrip().endswith("microseconds each")


@pytest.mark.parametrize(
    ("line", "words"),
    [(b"[1]\n", "line 2"), (b"nonsense\n", "line 2"), (b'{"a":[1]}\n', "'a' is a list"), (b'{"a":"\\u0001"}\n', "separator")],
)
def test_a_line_that_is_no_message_is_refused_with_its_number(run_alone, line, words):
    ran = run_alone("filter", "explain", "a > 8", "--messages", "-", stdin=b'{"a":1}\n' + line)

    assert ran.code == 2
    assert words in ran.err


def test_an_expression_that_is_none_is_refused_with_its_place(run_alone):
    ran = run_alone("filter", "explain", "a LIKE 'x%'", "--json")

    assert ran.code == 2
    assert "at character 3" in json.loads(ran.err)["error"]
    assert "CONTAINS" in json.loads(ran.err)["error"]


def test_a_file_that_is_not_there_is_a_usage_error(run_alone, tmp_path):
    ran = run_alone("filter", "explain", "a > 8", "--messages", tmp_path / "missing")

    assert ran.code == 2
    assert "missing cannot be read" in ran.err
