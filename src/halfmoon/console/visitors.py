"""Visitor of a request: the session of the cookie, its user as the database has it now, and the address."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from starlette.requests import Request

from halfmoon.console.access.sessions import Session
from halfmoon.console.access.users import User
from halfmoon.console.forms import RequestRefused
from halfmoon.console.page import ConsoleServices

SIDE_BAR = "halfmoon-side"
"""Cookie of the script, which remembers whether the side bar is collapsed. It has no secret."""


class Visitor(NamedTuple):
    """User who is logged in. ``token`` is the secret of the session, which only the cookie holds besides.

    ``is_narrow``: the browser keeps the side bar collapsed.
    """

    user: User
    session: Session
    token: str
    address: str
    is_narrow: bool = False


def cookie_name(services: ConsoleServices, request: Request) -> str:
    """Return the name of the cookie, with the port that the browser asks: it sends all cookies of a host to each of its ports.

    Behind TLS the prefix has browsers take it from nobody else, and send it nowhere else.
    """
    port = (services.public_url or request.headers.get("host", "")).rpartition(":")[2][:5]
    return ("__Host-" if services.secure else "") + "halfmoon" + (f"-{port}" if port.isdecimal() else "")


def visitor_of(services: ConsoleServices, request: Request, *, renews: bool = True, one_time: bool = False) -> Visitor:
    """Return the visitor.

    Raises RequestRefused: nobody is logged in, or, but for ``one_time``, the user has to choose a password first.
    """
    visitor = found(services, request, renews=renews)
    if visitor is None:
        raise RequestRefused("log in first", HTTPStatus.UNAUTHORIZED)
    if visitor.user.must_change and not one_time:
        raise RequestRefused("choose a password of your own first", HTTPStatus.UNAUTHORIZED)
    return visitor


def found(services: ConsoleServices, request: Request, *, renews: bool = True) -> Visitor | None:
    """Return the visitor, also one with a one-time password; None: nobody is logged in."""
    token = request.cookies.get(cookie_name(services, request), "")
    session = services.sessions.find(token, renews=renews) if token else None
    user = None if session is None else services.users.get(session.user)
    if session is None or user is None or user.changed_ms != session.changed_ms:
        return None
    return Visitor(user, session, token, address_of(services, request), request.cookies.get(SIDE_BAR) == "collapsed")


def address_of(services: ConsoleServices, request: Request) -> str:
    """Return the address of the browser: behind a proxy that was stated, the last that the proxy has added."""
    peer = request.client.host if request.client else ""
    if not services.public_url:
        return peer
    last = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()  # some proxies add a line of their own
    if last.startswith("["):
        last = last[1:].partition("]")[0]
    elif last.count(":") == 1:  # others say the port as well
        last = last.partition(":")[0]
    return last[:45] or peer
