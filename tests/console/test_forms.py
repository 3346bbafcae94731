"""Forms as they arrive: fields of the same name are lines, and only a page of the session sends them."""

from __future__ import annotations

import asyncio
import tracemalloc
from http import HTTPStatus
from urllib.parse import urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request

from halfmoon.console.forms import SMALL_BYTES_MAX, RequestRefused, read_form


def request(body: bytes, chunk: int = 7, **headers: str) -> Request:
    sent = {"content-type": "application/x-www-form-urlencoded", "host": "console.test", **headers}
    parts = iter([{"type": "http.request", "body": body[at : at + chunk], "more_body": True} for at in range(0, len(body), chunk)])

    async def receive() -> dict[str, object]:
        return next(parts, {"type": "http.request", "body": b"", "more_body": False})

    return Request({"type": "http", "headers": [(n.replace("_", "-").encode(), v.encode()) for n, v in sent.items()]}, receive)


async def test_a_form_is_read_whole_and_a_name_that_stands_twice_has_a_line_each():
    form = await read_form(request(b"csrf=t&once=7&id=a&id=b+%26&empty="), "t")

    assert form == {"once": "7", "id": "a\nb &", "empty": ""}


@pytest.mark.parametrize("origin", ["https://console.example.com", "null", "http://console.test.evil.test", "http://["])
async def test_another_origin_is_refused_unless_a_proxy_has_that_address(origin: str):
    with pytest.raises(RequestRefused) as refused:
        await read_form(request(b"csrf=t", origin=origin), "t")

    assert refused.value.status is HTTPStatus.FORBIDDEN
    assert await read_form(request(b"csrf=t", origin="https://console.example.com"), "t", "console.example.com") == {}


async def test_a_token_with_characters_that_are_no_ascii_is_wrong_and_no_more():
    with pytest.raises(RequestRefused):
        await read_form(request(b"csrf=%C3%A9"), "t")


async def test_a_form_of_anybody_is_small():
    sent = b"csrf=t&password=" + b"x" * SMALL_BYTES_MAX

    with pytest.raises(RequestRefused) as refused:
        await read_form(request(sent), "t", is_small=True)

    assert refused.value.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert len((await read_form(request(sent), "t"))["password"]) == SMALL_BYTES_MAX


async def test_a_form_that_does_not_end_or_is_broken_off_is_said_in_words():
    asked = request(b"csrf=t")

    async def silence() -> dict[str, object]:
        await asyncio.sleep(60)
        raise AssertionError

    async def gone() -> dict[str, object]:
        return {"type": "http.disconnect"}

    for receive in (silence, gone):
        with pytest.raises(RequestRefused, match="did not arrive whole"):
            await read_form(Request(asked.scope, receive), "t", is_small=True, small_s=0.05)


@given(st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=5))
@example([("a", "%41=+&\r\n \t=\n~"), ("b", "  "), ("\0", "\x7f\u202e\U0001f319")])
def test_every_text_arrives_as_it_was_sent(pairs: list[tuple[str, str]]):
    form = asyncio.run(
        read_form(request(urlencode([("csrf", "t"), *((f"f{name}", value) for name, value in pairs)]).encode()), "t")
    )

    expected: dict[str, str] = {}
    for name, value in pairs:
        expected[f"f{name}"] = f"{expected[f'f{name}']}\n{value}" if f"f{name}" in expected else value
    assert form == expected


@pytest.mark.parametrize("body", [b"a=%4", b"a=%", b"a=%%41", b"a=%zz", b"a=%ff", b"a=\xff", b"a=\r\n"])
async def test_what_no_browser_encodes_is_a_damaged_form(body: bytes):
    with pytest.raises(RequestRefused, match="damaged"):
        await read_form(request(b"csrf=t&" + body), "t")


async def test_the_largest_form_takes_a_few_times_its_size_of_memory():
    asked = request(b"csrf=t&body=" + b"%C3%A9" * (4 << 19), chunk=1 << 16)
    tracemalloc.start()
    try:
        form = await read_form(asked, "t")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert form["body"] == "\u00e9" * (4 << 19)
    assert peak < 128 << 20
