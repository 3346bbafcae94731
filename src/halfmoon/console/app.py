"""The web application: pages as HTML and as JSON, and changes carried out once. Knows no page by itself.

Every answer goes through `Console.guarded`: it has the headers that keep a page from being framed, sniffed, kept or given scripts,
and what goes wrong in it is said in words.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from halfmoon.console.access.audit import UNKNOWN
from halfmoon.console.access.sessions import RUNNING
from halfmoon.console.forms import Form, WrongForm, read_form
from halfmoon.console.page import Asked, Change, Done, Download, Page, Services
from halfmoon.console.render import Renderer
from halfmoon.console.signing_in import SigningIn, inside
from halfmoon.console.visitors import Visitor, visitor_of
from halfmoon.errors import (
    BrokerError,
    ConnectionLost,
    HalfmoonError,
    NetworkError,
    QueryNotFound,
    RequestTimeout,
    SettingError,
    TopicNotFound,
    UsageError,
)

log = logging.getLogger("halfmoon.console")

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

MISTAKE = "The console made a mistake; its log says more."

Answer = Callable[[Request], Awaitable[Response]]


def application(services: Services, pages: Iterable[Page | Change]) -> Starlette:
    """Return the application over pages and changes, whose paths differ. Its ``state.warm`` makes first looks at pages quick."""
    pages = list(pages)
    console = Console(services, Renderer([page for page in pages if isinstance(page, Page) and page.menu]))
    signing_in = SigningIn(services, console.renderer)
    routes = [Route("/static/{name}", console.guarded(console.static))]
    for path, get, post in signing_in.pages():
        routes.append(Route(path, console.guarded(get)))
        routes.append(Route(path, console.guarded(post), methods=["POST"]))
    for each in pages:
        if isinstance(each, Change):
            routes.append(Route(each.path, console.guarded(partial(console.carry_out, each)), methods=["POST"]))
            continue
        shown = console.guarded(partial(console.show, each))
        routes.append(Route(each.path, shown))
        if each.template and not each.fragment:
            routes.append(Route("/overview.json" if each.path == "/" else f"{each.path}.json", shown))
    unknown: Any = console.guarded(console.unknown)
    made = Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown})
    made.router.redirect_slashes = False  # it leads where the header Host says, and out of TLS behind a proxy
    made.state.warm = console.renderer.warm
    return made


class Console:
    """How a page is shown and a change carried out."""

    def __init__(self, services: Services, renderer: Renderer) -> None:
        self.services, self.renderer = services, renderer

    def guarded(self, answer: Answer) -> Answer:
        """Return an answer with the headers that all have; our own mistakes are a 500 and a line of the log."""

        async def guarded(request: Request, _error: Exception | None = None) -> Response:
            try:
                response = await answer(request)
            except HalfmoonError as exc:
                response = self._failed(request, exc)
            except Exception:
                log.exception("console: %s %s failed", request.method, request.url.path)
                response = self._said(
                    request, None, HTTPStatus.INTERNAL_SERVER_ERROR, "The console made a mistake; its log says more."
                )
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return guarded

    async def static(self, request: Request) -> Response:
        """Answer a file of the console's own."""
        found = self.renderer.static(request.path_params["name"])
        if found is None:
            return await self.unknown(request)
        body, kind = found
        return Response(body, media_type=kind, headers={"Cache-Control": "public, max-age=31536000, immutable"})

    async def show(self, page: Page, request: Request) -> Response:
        """Answer a page: its facts, as JSON or in its template."""
        visitor = visitor_of(self.services, request, renews=not page.fragment)
        if visitor is None:
            return _sign_in_first(request)
        if page.operators and visitor.user.role != "operator":
            return self._said(request, visitor, HTTPStatus.FORBIDDEN, "Only operators may see this.")
        asked = Asked(self.services.admin, dict(request.query_params), visitor.user.name, self.services)
        try:
            facts = await page.facts(asked)
        except HalfmoonError as exc:
            return self._failed(request, exc, visitor)
        if isinstance(facts, Download):
            kept = {"Content-Disposition": 'attachment; filename="message-body.bin"'}
            return Response(facts.body, media_type="application/octet-stream", headers=kept)
        if _wants_json(request):
            return Response(self.renderer.json(facts), media_type="application/json")
        return Response(self.renderer.page(page, facts, visitor, asked.values), media_type="text/html")

    async def carry_out(self, change: Change, request: Request) -> Response:
        """Carry out a change and show the page that it names, which says what was done; a form sent twice is carried out once."""
        if isinstance(visitor := self._operator(request), Response):
            return visitor
        form = await read_form(request, visitor.session.csrf, urlsplit(self.services.public_url).netloc)
        if isinstance(visitor := self._operator(request), Response):  # a form may take minutes to arrive
            return visitor
        before = visitor.session.begin(form.id)
        if before is not None:
            said = "This form is being carried out." if before == RUNNING else f"This form was sent before; {before}"
            return self._said(request, visitor, HTTPStatus.CONFLICT, said)
        outcome = "it failed, and the audit log says why."
        try:
            done = await self._recorded(change, form, visitor)
            outcome, visitor.session.notice = f"it was carried out once. {done.said}", done.said
            return RedirectResponse(done.then, HTTPStatus.SEE_OTHER)
        except HalfmoonError as exc:
            outcome = f"it failed: {text_of(exc)}"
            raise
        finally:
            visitor.session.finish(form.id, outcome)

    def _operator(self, request: Request) -> Visitor | Response:
        """Return the operator who asks, or the answer to who is none."""
        visitor = visitor_of(self.services, request)
        if visitor is None:
            return _sign_in_first(request)
        if visitor.user.role != "operator":
            text = f"{visitor.user.name} is a viewer: only operators may change anything."
            return self._said(request, visitor, HTTPStatus.FORBIDDEN, text)
        return visitor

    async def _recorded(self, change: Change, form: Form, visitor: Visitor) -> Done:
        audit, kept = self.services.audit, {name: form.values[name] for name in change.audit if name in form.values}
        entry = audit.begin(visitor.user.name, visitor.address, change.path.strip("/").replace("/", " "), kept)
        outcome = "failed: the console made a mistake"
        try:
            done = await change.act(Asked(self.services.admin, form.values, visitor.user.name, self.services))
            outcome = f"done: {done.said}"
            return done
        except (ConnectionLost, RequestTimeout) as exc:  # it may have been carried out
            outcome = f"not known: {text_of(exc)}"
            raise
        except HalfmoonError as exc:
            outcome = f"failed: {text_of(exc)}"
            raise
        except CancelledError:
            outcome = UNKNOWN
            raise
        finally:
            audit.end(entry, outcome)

    async def unknown(self, request: Request) -> Response:
        """Answer that there is no such page."""
        visitor = visitor_of(self.services, request)
        return self._said(request, visitor, HTTPStatus.NOT_FOUND, "There is no such page.")

    # ------------------------------------------------------------ what went wrong

    def _failed(self, request: Request, error: HalfmoonError, visitor: Visitor | None = None) -> Response:
        with suppress(HalfmoonError):  # a file of users that does not read is what went wrong
            visitor = visitor or visitor_of(self.services, request, renews=False)
        return self._said(request, visitor, _status_of(error), text_of(error), kind=type(error).__name__)

    def _said(self, request: Request, visitor: Visitor | None, status: HTTPStatus, text: str, kind: str = "") -> Response:
        facts = {"error": text, "kind": kind or status.name, "status": status.value}
        if _wants_json(request):
            return Response(self.renderer.json(facts), status, media_type="application/json")
        return Response(self.renderer.said(facts, visitor, _sent_from(request)), status, media_type="text/html")


def _sent_from(request: Request) -> str:
    """Return the page that a form was sent from, as the browser says, below this console; empty: not known, or no form."""
    page = urlsplit(request.headers.get("referer", "") if request.method == "POST" else "")
    return inside(f"{page.path}?{page.query}" if page.query else page.path, "")


def text_of(error: HalfmoonError) -> str:
    """Return what went wrong, in words."""
    return f"{error.remark or 'refused'} (code {error.code})" if isinstance(error, BrokerError) else str(error)


def _status_of(error: HalfmoonError) -> HTTPStatus:
    if isinstance(error, WrongForm):
        return error.status
    if isinstance(error, SettingError):
        return HTTPStatus.INTERNAL_SERVER_ERROR  # a file of the console, not what was asked
    if isinstance(error, UsageError):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, TopicNotFound | QueryNotFound):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_GATEWAY if isinstance(error, NetworkError) else HTTPStatus.CONFLICT


def _wants_json(request: Request) -> bool:
    return request.url.path.endswith(".json")


def _sign_in_first(request: Request) -> Response:
    if _wants_json(request):
        return Response(b'{"error":"log in first","kind":"UNAUTHORIZED","status":401}', 401, media_type="application/json")
    if request.method != "GET" or "x-live" in request.headers:
        return Response("log in first", 401, media_type="text/plain")
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse("/login" if here == "/" else f"/login?then={quote(here, safe='')}", HTTPStatus.SEE_OTHER)
