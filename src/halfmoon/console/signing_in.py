"""Logging in and out, and changing one's password. Hashes are made in a thread, one at a time, and only for who may try."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from halfmoon.console.forms import read_form
from halfmoon.console.page import Services
from halfmoon.console.render import Renderer
from halfmoon.console.visitors import address_of, cookie_name, found
from halfmoon.errors import UsageError
from halfmoon.shown.texts import span_text

Answer = Callable[[Request], Awaitable[Response]]


class SigningIn:
    """The pages that need no login, and those that end or change one."""

    def __init__(self, services: Services, renderer: Renderer) -> None:
        self._services, self._renderer = services, renderer
        self._hashing = asyncio.Semaphore(1)
        self._form_cookie = f"{cookie_name(services)}-form"
        self._host = urlsplit(services.public_url).netloc

    def pages(self) -> list[tuple[str, Answer, Answer]]:
        """Return the paths with what they show and what they take."""
        return [
            ("/login", self.ask, self.log_in),
            ("/password", self.ask_password, self.change_password),
            ("/logout", self.ask, self.log_out),
        ]

    # ------------------------------------------------------------ in

    async def ask(self, request: Request) -> Response:
        """Show the form to log in; who is logged in goes on."""
        visitor = found(self._services, request)
        if visitor is not None:
            return _to("/password" if visitor.user.must_change else inside(request.query_params.get("then", "")))
        return self._form(request, request.query_params.get("then", ""))

    async def log_in(self, request: Request) -> Response:
        """Log in, and say in words why not."""
        token = request.cookies.get(self._form_cookie, "")
        form = await read_form(request, token or secrets.token_urlsafe(), self._host, is_small=True)
        name, password, then = (form.get(field, "") for field in ("name", "password", "then"))
        services, address = self._services, address_of(self._services, request)
        async with self._hashing:
            if wait_ms := services.attempts.refused_ms(name, address):
                text = f"Too many wrong passwords: try again in {span_text(wait_ms)}."
                return self._form(request, then, text, HTTPStatus.TOO_MANY_REQUESTS)
            user = await asyncio.to_thread(services.users.check, name, password)
            if user is None:
                self._failed(name, address)
                return self._form(request, then, "Wrong name or password.", HTTPStatus.FORBIDDEN)
        services.attempts.succeeded(name, address)
        services.audit.note(user.name, address, "login", {})
        secret, _ = services.sessions.open(user)
        response = _to("/password" if user.must_change else inside(then))
        response.set_cookie(cookie_name(services), secret, path="/", secure=services.secure, httponly=True, samesite="strict")
        response.delete_cookie(self._form_cookie, path="/", secure=services.secure, httponly=True, samesite="strict")
        return response

    def _failed(self, name: str, address: str) -> None:
        known = self._services.users.get(name) is not None
        locked_ms = self._services.attempts.failed(name, address)
        self._services.audit.login_failed(name if known else "", address, locked_ms)

    def _form(self, request: Request, then: str, text: str = "", status: HTTPStatus = HTTPStatus.OK) -> Response:
        token = request.cookies.get(self._form_cookie, "")
        if len(token) != 43:
            token = secrets.token_urlsafe(32)
        empty = not self._services.users.all()
        page = self._renderer.plain("login.html", "Log in", None, csrf=token, then=inside(then), error=text, empty=empty)
        response = Response(page, status, media_type="text/html")
        secure = self._services.secure
        response.set_cookie(self._form_cookie, token, path="/", secure=secure, httponly=True, samesite="strict", max_age=3600)
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        visitor = found(self._services, request)
        if visitor is not None:
            await read_form(request, visitor.session.csrf, self._host, is_small=True)
            self._services.sessions.close(visitor.token)
            self._services.audit.note(visitor.user.name, visitor.address, "logout", {})
        response = _to("/login")
        services = self._services
        response.delete_cookie(cookie_name(services), path="/", secure=services.secure, httponly=True, samesite="strict")
        return response

    # ------------------------------------------------------------ the password

    async def ask_password(self, request: Request) -> Response:
        """Show the form to change one's password."""
        visitor = found(self._services, request)
        if visitor is None:
            return _to("/login?then=/password")
        return Response(self._renderer.plain("password.html", "Password", visitor, error=""), media_type="text/html")

    async def change_password(self, request: Request) -> Response:
        """Change the password of who is logged in, which ends all other sessions of that user."""
        services, visitor = self._services, found(self._services, request)
        if visitor is None:
            return _to("/login?then=/password")
        form = await read_form(request, visitor.session.csrf, self._host, is_small=True)
        old, new, again = (form.get(field, "") for field in ("old", "new", "again"))
        name = visitor.user.name
        try:
            if new != again:
                raise UsageError("the new password and its repetition differ")
            async with self._hashing:
                if wait_ms := services.attempts.refused_ms(name, visitor.address):
                    raise UsageError(f"too many wrong passwords: try again in {span_text(wait_ms)}")
                if await asyncio.to_thread(services.users.check, name, old) is None:
                    self._failed(name, visitor.address)
                    raise UsageError("the old password is wrong")
                await asyncio.to_thread(services.users.change_password, name, new)
        except UsageError as exc:
            text = str(exc)
            page = self._renderer.plain("password.html", "Password", visitor, error=f"{text[:1].upper()}{text[1:]}.")
            return Response(page, HTTPStatus.BAD_REQUEST, media_type="text/html")
        services.audit.note(name, visitor.address, "password", {})
        services.sessions.close_all(name)
        user = services.users.get(name)
        assert user is not None
        secret, session = services.sessions.open(user)
        session.notice = "Your password is changed; other sessions of yours have ended."
        response = _to("/")
        response.set_cookie(cookie_name(services), secret, path="/", secure=services.secure, httponly=True, samesite="strict")
        return response


def _to(path: str) -> Response:
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)


def inside(path: str, otherwise: str = "/") -> str:
    """Return a path of the console's own, whatever was asked for."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and len(path) < 2048
    return path if is_own else otherwise
