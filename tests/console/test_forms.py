"""Forms as they arrive: fields of the same name are lines, and only a page of the session sends them."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from starlette.requests import Request

from halfmoon.console.forms import WrongForm, read_form


def request(body: bytes, **headers: str) -> Request:
    sent = {"content-type": "application/x-www-form-urlencoded", "host": "console.test", **headers}
    parts = iter([{"type": "http.request", "body": body[at : at + 7], "more_body": True} for at in range(0, len(body), 7)])

    async def receive() -> dict[str, object]:
        return next(parts, {"type": "http.request", "body": b"", "more_body": False})

    return Request({"type": "http", "headers": [(n.replace("_", "-").encode(), v.encode()) for n, v in sent.items()]}, receive)


async def test_a_form_is_read_whole_and_a_name_that_stands_twice_has_a_line_each():
    form = await read_form(request(b"csrf=t&once=7&id=a&id=b+%26&empty="), "t")

    assert form == ("7", {"id": "a\nb &", "empty": ""})


@pytest.mark.parametrize("origin", ["https://console.example.com", "null", "http://console.test.evil.test"])
async def test_another_origin_is_refused_unless_a_proxy_has_that_address(origin: str):
    with pytest.raises(WrongForm) as refused:
        await read_form(request(b"csrf=t", origin=origin), "t")

    assert refused.value.status is HTTPStatus.FORBIDDEN
    assert await read_form(request(b"csrf=t", origin="https://console.example.com"), "t", "console.example.com")


async def test_a_token_with_characters_that_are_no_ascii_is_wrong_and_no_more():
    with pytest.raises(WrongForm):
        await read_form(request(b"csrf=%C3%A9"), "t")
