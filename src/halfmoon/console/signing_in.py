"""Login, logout and change of a password. Hashes are made in a thread, one at a time, and not for users who are locked out."""

from __future__ import annotations

import secrets
from asyncio import Semaphore, to_thread
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from halfmoon.console.access.users import User
from halfmoon.console.forms import RequestRefused, read_form
from halfmoon.console.page import ConsoleServices
from halfmoon.console.render import Renderer, at
from halfmoon.console.visitors import Visitor, address_of, cookie_name, found, visitor_of
from halfmoon.errors import UsageError
from halfmoon.shown.texts import span_text


class SigningIn:
    """Pages that need no login, and those that end or change one. ``then`` is the page that the visitor asked for."""

    def __init__(self, services: ConsoleServices, renderer: Renderer) -> None:
        self._services, self._renderer = services, renderer
        self._hashing = Semaphore(1)
        self._host = urlsplit(services.public_url).netloc

    async def ask(self, request: Request) -> Response:
        """Show the form to log in; a user who is logged in is redirected."""
        visitor, then = found(self._services, request), request.query_params.get("then", "")
        return self._login_form(request, then) if visitor is None else _onward(visitor.user, then)

    async def log_in(self, request: Request) -> Response:
        """Log in, or show why not."""
        token = request.cookies.get(self._form_cookie(request), "")
        form = await read_form(request, token or secrets.token_urlsafe(), self._host, is_small=True)
        name, password, then = (form.get(field, "") for field in ("name", "password", "then"))
        services, address = self._services, address_of(self._services, request)
        try:
            user = await self._check(name, password, address, "wrong name or password")
        except RequestRefused as exc:
            return self._login_form(request, then, exc)
        services.attempts.succeeded(name, address)
        await to_thread(services.audit.note, name, address, "login", {})
        secret, _ = services.sessions.open(user)
        response = _onward(user, then)
        self._set(response, cookie_name(services, request), secret)
        self._set(response, self._form_cookie(request), "", max_age=0)
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        services, visitor = self._services, found(self._services, request)
        if visitor is not None:
            await read_form(request, visitor.session.csrf, self._host, is_small=True)
            services.sessions.close(visitor.token)
            await to_thread(services.audit.note, visitor.user.name, visitor.address, "logout", {})
        response = _to("/login")
        self._set(response, cookie_name(services, request), "", max_age=0)
        return response

    async def ask_password(self, request: Request) -> Response:
        """Show the form to change one's password."""
        return self._password_form(visitor_of(self._services, request, one_time=True), request.query_params.get("then", ""))

    async def change_password(self, request: Request) -> Response:
        """Change the password of the user, which ends all other sessions of that user."""
        services, visitor = self._services, visitor_of(self._services, request, one_time=True)
        form = await read_form(request, visitor.session.csrf, self._host, is_small=True)
        old, new, again, then = (form.get(field, "") for field in ("old", "new", "again", "then"))
        name = visitor.user.name
        try:
            if new != again:
                raise UsageError("the new password and its repetition differ")
            await self._check(name, old, visitor.address, "the current or one-time password is wrong")
            async with self._hashing:
                await to_thread(services.users.change_password, name, new)
        except UsageError as exc:
            return self._password_form(visitor, then, exc)
        await to_thread(services.audit.note, name, visitor.address, "password", {})
        user = services.users.get(name)
        if user is None:  # removed meanwhile
            return _to("/login")
        secret, session = services.sessions.open(user)
        session.notice = "Your password is changed; other sessions of yours have ended."
        response = _to(inside(then))
        self._set(response, cookie_name(services, request), secret)
        return response

    async def _check(self, name: str, password: str, address: str, wrong: str) -> User:
        """Return the user with this password. Raises RequestRefused: it is ``wrong``, or the name is locked out."""
        services = self._services
        async with self._hashing:
            if wait_ms := services.attempts.refused_ms(name, address):
                raise RequestRefused(f"too many wrong passwords: try again in {span_text(wait_ms)}", HTTPStatus.TOO_MANY_REQUESTS)
            user = await to_thread(services.users.check, name, password)
            if user is None:
                known, locked_ms = services.users.get(name), services.attempts.failed(name, address)
                await to_thread(services.audit.login_failed, name if known else "", address, locked_ms)
                raise RequestRefused(wrong, HTTPStatus.FORBIDDEN)
        return user

    def _login_form(self, request: Request, then: str, refused: RequestRefused | None = None) -> Response:
        token = request.cookies.get(self._form_cookie(request), "")
        if len(token) != 43:
            token = secrets.token_urlsafe(32)
        empty, error = not self._services.users.all(), _sentence(refused)
        page = self._renderer.plain("login.html", "Log in", None, csrf=token, then=inside(then), error=error, empty=empty)
        response = Response(page, refused.status if refused else HTTPStatus.OK, media_type="text/html")
        self._set(response, self._form_cookie(request), token, max_age=3600)
        return response

    def _password_form(self, visitor: Visitor, then: str, refused: UsageError | None = None) -> Response:
        page = self._renderer.plain("password.html", "Password", visitor, then=inside(then), error=_sentence(refused))
        return Response(page, HTTPStatus.BAD_REQUEST if refused else HTTPStatus.OK, media_type="text/html")

    def _form_cookie(self, request: Request) -> str:
        return f"{cookie_name(self._services, request)}-form"

    def _set(self, response: Response, name: str, value: str, max_age: int | None = None) -> None:
        response.set_cookie(name, value, max_age, path="/", secure=self._services.secure, httponly=True, samesite="strict")


def _to(path: str) -> Response:
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)


def _onward(user: User, then: str) -> Response:
    """Redirect a user to the page asked for, or first to the change of a one-time password."""
    then = inside(then)
    return _to(at("/password", then="" if then == "/" else then) if user.must_change else then)


def _sentence(error: UsageError | None) -> str:
    return f"{str(error)[:1].upper()}{str(error)[1:]}." if error else ""


def inside(path: str, otherwise: str = "/") -> str:
    """Return the path if it is the console's own, else that of the overview."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and len(path) < 2048
    return path if is_own else otherwise
