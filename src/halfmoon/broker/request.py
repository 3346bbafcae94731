"""`Request` and `Reply`, the argument and the result of a handler, and the refusal of a request that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, TypeVar

import msgspec

from halfmoon.broker.access.accounts import Account
from halfmoon.errors import BrokerError, MessageIllegal, MessageRefused, PeerError, ServiceNotAvailable, StoreError
from halfmoon.instant import Instant
from halfmoon.wire.bodies import from_json
from halfmoon.wire.codes import VERSION
from halfmoon.wire.command import Command, encode_header
from halfmoon.wire.json import REQUEST
from halfmoon.wire.peer import Peer
from halfmoon.wire.table import Header, fields_of

H = TypeVar("H", bound=Header)
B = TypeVar("B")

log = logging.getLogger("halfmoon.broker")

_FRAME = Struct(">ii")  # | total i32 | serialisation u8, header length u24 |


class Request(msgspec.Struct):
    """One request, its connection, the time at which it is handled, and the account that it names, where that is checked."""

    command: Command
    peer: Peer
    now: Instant
    account: Account | None = None

    def header(self, cls: type[H]) -> H:
        """Return the request's header. Raises BadHeader."""
        return self.command.header(cls)

    def body(self, cls: type[B]) -> B:
        """Return the request's JSON body. Raises BrokerError 1 when it does not have this shape."""
        try:
            return from_json(cls, self.command.body, bounds=REQUEST)
        except PeerError as exc:
            raise BrokerError(f"the body is not a {cls.__name__}: {exc}") from exc


def account_of(request: Request) -> str:
    """Return the access key of the account that a request comes from; empty: it needs none."""
    return "" if request.account is None else request.account.access_key


class Reply(msgspec.Struct):
    """A reply: response code, remark, header and body."""

    code: int = 0
    remark: str | None = None
    header: Header | None = None
    body: Any = b""


Handler = Callable[[Request], Reply | None]
"""Returns the reply to a request; None: the handler replies itself, now or later."""

Handlers = Mapping[type[Header], Handler]
"""Handlers by the class of the request's header. Changes of tables are saved before the answer: `halfmoon.broker.saving`."""


def refusal_of(error: Exception, what: str) -> BrokerError:
    """Return the refusal of a request that failed. ``what`` names the request in the log.

    An error of the peer or of the disk is one line there, a mistake of our own a traceback; the broker goes on.
    """
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, MessageIllegal):
        log.info("%s is refused: %s", what, error)
        return MessageRefused(f"the message is illegal: {error}")
    if isinstance(error, OSError):
        log.error("%s failed: %s", what, error)
        return ServiceNotAvailable(f"service not available now: {error}")
    if not isinstance(error, (PeerError, StoreError)):
        log.error("%s failed", what, exc_info=error)
        return BrokerError(f"{type(error).__name__}: {error}")
    return BrokerError(str(error))


def reply_to(opaque: int, serialization: int, reply: Reply) -> Command:
    """Return the command of a reply: JAVA and our version, which every client takes."""
    fields = {} if reply.header is None else fields_of(reply.header)
    return Command(reply.code, 1, opaque, 0, VERSION, reply.remark, fields, reply.body, serialization)


def reply_head(opaque: int, serialization: int, reply: Reply, size_bytes: int) -> bytes:
    """Return the frame of a reply up to its body, of which ``size_bytes`` follow."""
    header = encode_header(reply_to(opaque, serialization, reply))
    return _FRAME.pack(4 + len(header) + size_bytes, serialization << 24 | len(header)) + header
