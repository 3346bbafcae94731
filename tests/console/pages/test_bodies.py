"""Bodies as people are shown them: text, JSON and hex, within bounds and whatever they are."""

from __future__ import annotations

import json
from time import perf_counter

import pytest
from markupsafe import escape

from halfmoon.console.pages.bodies import CHARS_MAX, HEX_BYTES, JSON_BYTES_MAX, body_facts


@pytest.mark.parametrize(
    "value", [{}, [], {"a": 1, "b": [1, 2.5, "x,]:{", None, True, {}]}, [[], [[]], {"": {"k": 'quote " and \\'}}], {"ä": "\n"}]
)
def test_json_is_shown_as_pythons_own_indents_it(value):
    assert body_facts(json.dumps(value).encode())["json"] == json.dumps(value, indent=2)


@pytest.mark.parametrize("body", [b"", b"42", b"paid", b"{", b"[1,]", b'{"a" 1}', b"[1] x", b"<script>alert(1)</script>"])
def test_what_is_no_object_or_list_of_json_is_text_alone(body):
    facts = body_facts(body)

    assert (facts["json"], facts["text"], facts["cut"]) == (None, body.decode(), False)


@pytest.mark.parametrize("depth", [5_000, 32_768])
def test_deep_json_is_shown_as_text_and_that_is_said(depth):
    facts = body_facts(b"[" * depth + b"]" * depth)

    assert (facts["json"], facts["no_json"]) == (None, "It is nested too deep to be shown as JSON.")
    assert facts["text"].startswith("[[[[")


@pytest.mark.parametrize("more", [0, 1])
def test_json_is_shown_as_json_up_to_64_kib(more):
    facts = body_facts(b"[" + b" " * (JSON_BYTES_MAX - 2 + more) + b"]")

    assert (facts["json"], facts["no_json"]) == ((None, "It is too large to be shown as JSON.") if more else ("[]", ""))


def test_json_whose_indents_would_take_the_most_is_shown_quickly():
    begin = perf_counter()
    facts = body_facts(b"[" * 900 + b"1," * 31_800 + b"1" + b"]" * 900)

    assert perf_counter() - begin < 2
    assert (len(facts["json"]), facts["cut"]) == (CHARS_MAX, True)


def test_json_of_some_hundred_levels_has_a_bound_to_its_indents():
    facts = body_facts(b'{"a":' * 300 + b"1" + b"}" * 300)

    assert len(facts["json"]) < CHARS_MAX + 200
    assert facts["json"].count("\n") > 100


@pytest.mark.parametrize(
    "body",
    [
        json.dumps([{"order": number, "lines": ['"' * 20]} for number in range(80_000)]).encode(),
        b"[" + b"[]," * 1_300_000 + b"[]]",
        b'"' * 4_000_000,
        ("\U000e0001" * 1_000_000).encode(),
        b"\x1b" * 4_000_000,
        bytes(range(256)) * 16_000,
    ],
    ids=["orders", "brackets", "quotes", "tags", "escapes", "binary"],
)
def test_four_megabytes_are_cut_to_what_a_page_holds_and_quickly(body):
    begin = perf_counter()
    facts = body_facts(body)

    assert perf_counter() - begin < 2
    assert facts["cut"] is True
    assert facts["size_bytes"] == len(body)
    assert sum(len(escape(facts[view] or "")) for view in ("text", "json", "hex")) < 300_000


def test_what_cannot_be_seen_is_escaped_but_lines_and_tabs_stay():
    facts = body_facts("a\tb\nc \u202egnp.exe \x1b[31m \x00 ü".encode())

    assert facts["text"] == "a\tb\nc \\u202egnp.exe \\x1b[31m \\x00 ü"


def test_binary_is_no_text_and_its_hex_has_places_bytes_and_what_is_ascii():
    facts = body_facts(b"\xff\xfePaid <b>" + bytes(10))

    assert facts["text"] is None
    assert facts["hex"].split("\n") == [
        "00000000  ff fe 50 61 69 64 20 3c 62 3e 00 00 00 00 00 00  ..Paid <b>......",
        "00000010  00 00 00 00                                      ....",
    ]
    assert len(body_facts(b"\xff" * 10_000)["hex"].split("\n")) == HEX_BYTES // 16
