"""What is shown: sizes, addresses with queries, values of every kind as JSON."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from halfmoon.console.access.database import now_ms
from halfmoon.console.render import HERE, Renderer, ago_text, at, marked


class Struct(msgspec.Struct):
    count: int


def test_code_in_a_sentence_is_marked_and_markup_is_text():
    assert marked("See `halfmoon tx` & <b>") == "See <code>halfmoon tx</code> &amp; &lt;b&gt;"
    assert marked("`a\u202e`") == "<code>a\\u202e</code>"


@pytest.mark.parametrize(
    ("past_s", "text"),
    [(0, "now"), (1, "1 s ago"), (59, "59 s ago"), (61, "1 min ago"), (7200, "2 h ago"), (200_000, "2 d ago"), (-3661, "in 1 h")],
)
def test_a_time_is_shown_by_its_distance(past_s: int, text: str):
    assert ago_text(now_ms() - past_s * 1000 + (200 if past_s < 0 else -200)) == text


def test_a_name_in_an_address_stays_one_value():
    assert at("/topic", name="a&b=c #?/%", after=None, q="") == "/topic?name=a%26b%3Dc%20%23%3F%2F%25"
    assert at("/topics") == "/topics"


def test_facts_of_every_kind_are_json():
    body = Renderer([]).json({"struct": Struct(1), "body": b"\xff", "set": {1}})

    assert msgspec.json.decode(body) == {"struct": {"count": 1}, "body": "/w==", "set": [1]}


async def test_every_template_compiles():
    renderer = Renderer([])

    await renderer.warm()

    assert len(renderer._environment.cache or ()) >= len(renderer._environment.list_templates()) > 20


@pytest.mark.parametrize("path", sorted((HERE / "templates").iterdir()), ids=lambda path: path.name)
def test_no_template_takes_a_method_of_a_dict_for_a_value_in_it(path: Path):
    methods = "|".join(name for name in dir(dict) if not name.startswith("_"))

    assert re.findall(rf"\w\.(?:{methods})\b(?!\()", path.read_text()) == []
