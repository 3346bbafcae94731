"""Forms that a browser sends: read within bounds, and only from pages of the console's own. Carries nothing out."""

from __future__ import annotations

import asyncio
import hmac
import re
from binascii import a2b_qp
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request

from halfmoon.errors import UsageError

FORM_BYTES_MAX = 13 * 1024 * 1024
"""Largest form: a body of 4 MiB takes up to three bytes a byte, and there are other fields."""

SMALL_BYTES_MAX, SMALL_S = 16 * 1024, 10.0
"""Largest form that is read of who may be anybody: a name and a password; and how long it may take."""

FIELDS_MAX = 1000
"""Fields of a form: a page of rows with a box each, and what else it has."""


_DAMAGED = re.compile(rb"%(?![0-9A-Fa-f]{2})|[\r\n]")


class WrongForm(UsageError):
    """A form that no page of ours sent, or that is too large; ``status`` is what HTTP calls that."""

    def __init__(self, text: str, status: HTTPStatus) -> None:
        super().__init__(text)
        self.status = status


class Form(NamedTuple):
    """What was sent. ``id`` names the form as it was shown: sent again, it has the same."""

    id: str
    values: dict[str, str]
    """Of a name that stands there several times, such as a box of each row, all values, a line each."""


async def read_form(request: Request, csrf: str, host: str = "", *, is_small: bool = False) -> Form:
    """Read a form and check that a page of this session has sent it. ``host``: the console's own where a proxy stands before it.

    ``is_small``: it has 16 KiB at most, and 10 seconds. Raises WrongForm.
    """
    _check_origin(request, host or request.headers.get("host", ""))
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise WrongForm("this is no form", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    try:
        async with asyncio.timeout(SMALL_S if is_small else None):
            body = await _body(request, SMALL_BYTES_MAX if is_small else FORM_BYTES_MAX)
    except (TimeoutError, ClientDisconnect):
        raise WrongForm("the form did not arrive whole", HTTPStatus.REQUEST_TIMEOUT) from None
    try:
        pairs = _pairs(bytes(body))
    except ValueError:
        raise WrongForm("the form is damaged, or has too many fields", HTTPStatus.BAD_REQUEST) from None
    lines: dict[str, list[str]] = {}
    for name, value in pairs:
        lines.setdefault(name, []).append(value)
    values = {name: "\n".join(each) for name, each in lines.items()}
    if not hmac.compare_digest(values.pop("csrf", "").encode(), csrf.encode()):
        raise WrongForm("this form is not of your session: open the page again", HTTPStatus.FORBIDDEN)
    return Form(values.pop("once", ""), values)


def _pairs(body: bytes) -> list[tuple[str, str]]:
    """Return names and values. Raises ValueError: the form is damaged, or has too many."""
    if body.count(b"&") >= FIELDS_MAX or not body.isascii() or _DAMAGED.search(body):
        raise ValueError
    parts = (field.partition(b"=") for field in body.split(b"&") if field)
    return [(_text(name), _text(value)) for name, _, value in parts]


def _text(encoded: bytes) -> str:
    """Return a text that a form has encoded. As quoted-printable, which writes = for %, Python reads it in C: urllib takes 1 GB
    and seconds for the largest form."""
    return a2b_qp(encoded.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"=")).decode()


async def _body(request: Request, bytes_max: int) -> bytearray:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise WrongForm(f"the form is larger than {bytes_max:,} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return body


def _check_origin(request: Request, host: str) -> None:
    """Raise WrongForm for a form that a browser says another site has sent."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none") or (origin is not None and urlsplit(origin).netloc != host):
        raise WrongForm("another site has sent this form", HTTPStatus.FORBIDDEN)
