"""Forms of browsers: read within bounds, and only from the console's own pages. Carries nothing out."""

from __future__ import annotations

import asyncio
import hmac
import re
from binascii import a2b_qp
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request

from halfmoon.errors import UsageError

FORM_BYTES_MAX = 13 * 1024 * 1024
"""Largest form: a body of 4 MiB takes up to three bytes a byte, and there are other fields."""

SMALL_BYTES_MAX, SMALL_S = 16 * 1024, 10.0
"""Largest form before a login (a name and a password), and how long it may take."""

FIELDS_MAX = 1000
"""Most fields of a form: a page of rows with a box each, and some others."""

_DAMAGED = re.compile(rb"%(?![0-9A-Fa-f]{2})|[\r\n\x80-\xff]")


class RequestRefused(UsageError):
    """A request is refused with an HTTP ``status``, such as a form from a page of another site."""

    def __init__(self, text: str, status: HTTPStatus) -> None:
        super().__init__(text)
        self.status = status


async def read_form(
    request: Request, csrf: str, host: str = "", *, is_small: bool = False, small_s: float = SMALL_S
) -> dict[str, str]:
    """Read a form and check that a page of this session has sent it. ``host``: the console's own where a proxy stands before it.

    Of a name that stands there several times, such as a box of each row, all values are returned, a line each. ``is_small``: it has
    16 KiB at most, and 10 seconds. Raises RequestRefused.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    is_own = origin is None or origin.partition("://")[2] == (host or request.headers.get("host", ""))
    if site not in ("same-origin", "none") or not is_own:
        raise RequestRefused("another site has sent this form", HTTPStatus.FORBIDDEN)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise RequestRefused("the request is not a form", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    body, bytes_max = bytearray(), SMALL_BYTES_MAX if is_small else FORM_BYTES_MAX
    try:
        async with asyncio.timeout(small_s if is_small else None):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise RequestRefused(f"the form is larger than {bytes_max:,} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    except (TimeoutError, ClientDisconnect):
        raise RequestRefused("the form did not arrive whole", HTTPStatus.REQUEST_TIMEOUT) from None
    try:
        form = _fields(body)
    except ValueError:
        raise RequestRefused("the form is damaged, or has too many fields", HTTPStatus.BAD_REQUEST) from None
    if not hmac.compare_digest(form.pop("csrf", "").encode(), csrf.encode()):
        raise RequestRefused("this form belongs to another session: open the page again", HTTPStatus.FORBIDDEN)
    return form


def _fields(body: bytearray) -> dict[str, str]:
    """Return names and values. Raises ValueError: the form is damaged, or has too many fields."""
    if body.count(b"&") >= FIELDS_MAX or _DAMAGED.search(body):
        raise ValueError
    lines: dict[str, list[str]] = {}
    for field in body.split(b"&"):
        name, _, value = field.partition(b"=")
        lines.setdefault(_text(name), []).append(_text(value))
    return {name: "\n".join(values) for name, values in lines.items() if name}


def _text(encoded: bytearray) -> str:
    """Return a text that a form has encoded.

    As quoted-printable, which writes = for %, Python reads it in C: urllib takes 1 GB and seconds for the largest form.
    """
    return a2b_qp(encoded.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"=")).decode()
