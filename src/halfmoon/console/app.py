"""Web application: pages as HTML and as JSON, and changes carried out once. Knows no page by itself.

Every answer has the headers that keep a page from being framed, sniffed, kept or given scripts; what goes wrong is said in words.
"""

from __future__ import annotations

import logging
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from halfmoon.console.access.audit import UNKNOWN
from halfmoon.console.access.sessions import RUNNING
from halfmoon.console.forms import RequestRefused, read_form
from halfmoon.console.page import REASON_MAX, Asked, Change, ConsoleServices, Done, Page
from halfmoon.console.render import STATIC, Renderer
from halfmoon.console.signing_in import SigningIn, inside
from halfmoon.console.visitors import Visitor, found, visitor_of
from halfmoon.errors import (
    ConnectionLost,
    GroupNotFound,
    HalfmoonError,
    NetworkError,
    QueryNotFound,
    RequestTimeout,
    SettingError,
    TopicNotFound,
    UsageError,
    kind_of,
    text_of,
)
from halfmoon.logs import escaped
from halfmoon.settings.http import is_own_host

log = logging.getLogger("halfmoon.console")

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATUSES = {
    SettingError: HTTPStatus.INTERNAL_SERVER_ERROR,  # a file of the console, not what was asked
    UsageError: HTTPStatus.BAD_REQUEST,
    TopicNotFound: HTTPStatus.NOT_FOUND,
    GroupNotFound: HTTPStatus.NOT_FOUND,
    QueryNotFound: HTTPStatus.NOT_FOUND,
    NetworkError: HTTPStatus.BAD_GATEWAY,
    HalfmoonError: HTTPStatus.CONFLICT,
}
"""HTTP status of an error: the first class that fits."""
HEADINGS = {
    HTTPStatus.BAD_REQUEST: "Not possible", HTTPStatus.FORBIDDEN: "Not allowed", HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.CONFLICT: "Not done", HTTPStatus.BAD_GATEWAY: "No answer from the cluster",
}  # fmt: skip
"""Title of the page for a status, where HTTP's own word says little to an operator."""


class Console:
    """ASGI application over pages and changes, whose paths differ."""

    def __init__(self, services: ConsoleServices, pages: Iterable[Page | Change]) -> None:
        pages = list(pages)
        self._names = frozenset({urlsplit(services.public_url).hostname or ""})
        self.services, self.renderer = services, Renderer([page for page in pages if isinstance(page, Page) and not page.fragment])
        self._answers: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", f"/static/{path.name}"): partial(self._static, path) for path in STATIC.iterdir()
        }
        self._answers["GET", "/favicon.ico"] = self._answers["GET", "/static/halfmoon.svg"]  # a JSON twin has no link to it
        signing_in = SigningIn(services, self.renderer)
        self._answers |= {
            ("GET", "/login"): signing_in.ask, ("POST", "/login"): signing_in.log_in, ("GET", "/logout"): signing_in.ask,
            ("POST", "/logout"): signing_in.log_out, ("GET", "/password"): signing_in.ask_password,
            ("POST", "/password"): signing_in.change_password,
        }  # fmt: skip
        for each in pages:
            if isinstance(each, Change):
                self._answers["POST", each.path] = partial(self._carry_out, each)
                continue
            self._answers["GET", each.path] = partial(self._show, each)
            if each.template and not each.fragment:
                self._answers["GET", "/overview.json" if each.path == "/" else f"{each.path}.json"] = partial(self._show, each)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. An internal error is status 500 and a line of the log."""
        request = Request(scope, receive)
        method = "GET" if request.method == "HEAD" else request.method
        answer = self._answers.get((method, scope["path"]), self._unknown)
        try:
            if not self.services.shows_certificate and not is_own_host(request.headers.get("host", ""), self._names):
                raise RequestRefused(
                    "This is not the console's address: name it with --behind-proxy.", HTTPStatus.MISDIRECTED_REQUEST
                )
            response = await answer(request)
        except HalfmoonError as exc:
            response = self._failed(request, exc)
        except Exception:
            log.exception("console: %s %s failed", request.method, request.url.path)
            mistake = RequestRefused("Internal error; see the console's log.", HTTPStatus.INTERNAL_SERVER_ERROR)
            response = self._failed(request, mistake)
        response.headers.update(HEADERS)
        if self.services.secure:
            response.headers["Strict-Transport-Security"] = "max-age=31536000"
        response.headers.setdefault("Cache-Control", "no-store")
        await response(scope, receive, send)

    async def _static(self, path: Path, _request: Request) -> Response:
        return FileResponse(path, headers={"Cache-Control": "public, max-age=31536000, immutable"})

    async def _unknown(self, _request: Request) -> Response:
        raise RequestRefused("There is no such page.", HTTPStatus.NOT_FOUND)

    async def _show(self, page: Page, request: Request) -> Response:
        """Answer a page with its facts, as JSON or in its template."""
        visitor = self._visitor(request, operators=page.operators, renews=not page.fragment)
        asked = Asked(self.services.admin, dict(request.query_params), visitor.user.name, self.services)
        facts = await page.facts(asked)
        if isinstance(facts, bytes):
            kept = {"Content-Disposition": 'attachment; filename="message-body.bin"'}
            return Response(facts, media_type="application/octet-stream", headers=kept)
        if _wants_json(request):
            return Response(self.renderer.json(facts), media_type="application/json")
        return Response(self.renderer.page(page, facts, visitor, asked.values), media_type="text/html")

    async def _carry_out(self, change: Change, request: Request) -> Response:
        """Carry out a change and redirect to the page that reports it; a form sent twice is carried out once."""
        csrf = self._visitor(request, operators=True).session.csrf
        form = await read_form(request, csrf, urlsplit(self.services.public_url).netloc)
        visitor, form_id = self._visitor(request, operators=True), form.pop("once", "")  # a form may take minutes to arrive
        if before := visitor.session.begin(form_id):
            said = "This form is being carried out." if before == RUNNING else f"This form was sent before; {before}"
            raise RequestRefused(said, HTTPStatus.CONFLICT)
        said = "it is not known whether it was carried out: internal error"
        try:
            done = await self._recorded(change, form, visitor)
            said, visitor.session.notice = f"it was carried out once. {done.said}", done.said
        except (ConnectionLost, RequestTimeout) as exc:
            said = f"it is not known whether it was carried out: {text_of(exc)}"
            raise RequestRefused(said, HTTPStatus.BAD_GATEWAY) from exc
        except HalfmoonError as exc:
            said = f"it failed: {text_of(exc)}"
            raise
        finally:
            visitor.session.finish(form_id, said)
        # A script is told where to go: a page that it fetched unseen would take the notice.
        return RedirectResponse(done.then, HTTPStatus.CREATED if _wants_json(request) else HTTPStatus.SEE_OTHER)

    async def _recorded(self, change: Change, values: dict[str, str], visitor: Visitor) -> Done:
        audit, kept = self.services.audit, {name: values[name] for name in change.audit if name in values}
        asked = Asked(self.services.admin, values, visitor.user.name, self.services)
        if change.irreversible:
            kept["reason"] = asked.text("reason", length_max=REASON_MAX)
        action = change.path.strip("/").replace("/", " ")
        entry = await to_thread(audit.begin, visitor.user.name, visitor.address, action, kept)
        outcome = UNKNOWN  # where the console ends meanwhile
        try:
            done = await change.act(asked)
            outcome = f"done: {done.said}"
            return done
        except HalfmoonError as exc:
            may_be_done = isinstance(exc, ConnectionLost | RequestTimeout)
            outcome = f"{'not known' if may_be_done else 'failed'}: {text_of(exc)}"
            raise
        except Exception:
            outcome = "not known: internal error"
            raise
        finally:
            await to_thread(audit.end, entry, outcome)

    def _visitor(self, request: Request, *, operators: bool, renews: bool = True) -> Visitor:
        """Return the user of a request. Raises RequestRefused: nobody is logged in, or only ``operators`` may."""
        visitor = visitor_of(self.services, request, renews=renews)
        if operators and visitor.user.role != "operator":
            text = f"{visitor.user.name} is a viewer: only operators may change anything."
            raise RequestRefused(text if request.method == "POST" else "Only operators may see this.", HTTPStatus.FORBIDDEN)
        return visitor

    def _failed(self, request: Request, error: HalfmoonError) -> Response:
        if isinstance(error, SettingError):
            _log_once(str(error))
        known = next(status for kind, status in STATUSES.items() if isinstance(error, kind))
        status = error.status if isinstance(error, RequestRefused) else known
        facts = {"error": escaped(text_of(error)), "kind": kind_of(error), "status": status.value}
        if _wants_json(request):
            return Response(self.renderer.json(facts), status, media_type="application/json")
        if status is HTTPStatus.UNAUTHORIZED and request.method == "GET" and "x-live" not in request.headers:
            here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse("/login" if here == "/" else f"/login?then={quote(here, safe='')}", HTTPStatus.SEE_OTHER)
        visitor, onward = None, ("/", "Overview")
        if status is HTTPStatus.MISDIRECTED_REQUEST:
            onward = ("", "")  # nothing can be done at this address
        elif status is not HTTPStatus.INTERNAL_SERVER_ERROR:  # asking who asks may be what failed, and would wait once more
            with suppress(HalfmoonError):
                visitor = found(self.services, request, renews=False)
            onward = (
                ("/", "Log in") if visitor is None else ("/password", "Choose a password") if visitor.user.must_change else onward
            )
        shown = {"back": _sent_from(request), "onward": onward, **facts}
        page = self.renderer.plain("said.html", HEADINGS.get(status, status.phrase), visitor, **shown)
        return Response(page, status, media_type="text/html")


@lru_cache(16)
def _log_once(text: str) -> None:
    log.error("console: %s", text)


def _sent_from(request: Request) -> str:
    """Return the page that a form was sent from, as the browser says, below this console; empty: not known, or no form."""
    _, slash, page = request.headers.get("referer", "").partition("://")[2].partition("/")
    return inside(slash + page, "") if request.method == "POST" else ""


def _wants_json(request: Request) -> bool:
    return request.url.path.endswith(".json") or request.headers.get("accept") == "application/json"
