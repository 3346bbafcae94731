"""Generator of docs/protocol.md from the protocol table: every request, its fields and its reply."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, get_args

import msgspec

import halfmoon.wire.headers as headers
from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.instant import instant
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.settings import StoreSettings
from halfmoon.wire.refused import REFUSED
from halfmoon.wire.table import REQUESTS, Header, RequestType
from tools.generated import write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"

TITLES = {
    "send": "Sending",
    "pull": "Reading",
    "ranges": "Reading ranges",
    "delay": "Delayed messages",
    "offset": "Offsets",
    "transaction": "Transactions",
    "batch": "Batch transactions",
    "client": "Clients",
    "group": "Consumer groups",
    "topic": "Topics",
    "route": "The name server",
    "admin": "The broker",
    "access": "Accounts",
}

HEAD = """# The protocol's requests

Written by `tools/generate_protocol.py` from the protocol table (`src/halfmoon/wire/headers`); a test says when it is stale.

A request is identified by its code. Fields travel as text, under the names below. If a **required** field is missing, the reply
is code 1. Types: `str` text, `i32` and `i64` signed numbers of 32 and 64 bits, `bool` the words `true`
and `false`. *Since* names the first RocketMQ release with the request when it is newer than 4.7.1. *Needs* is the
permission that an account must have when access control is on.

The next table names the side that answers a request: the *broker*, the name server (*ns*), or a *client* that a broker asks. All
others answer it with code 3.
"""

REFUSED_HEAD = """## Refused on purpose

No server supports these; the reply is code 3. If some version of RocketMQ supports the request, the remark ends with the reason.

"""

CLIENT = frozenset({39, 40, 220, 221, 307, 309, 326})
"""Requests that a client answers: `Instance.on_asked`, with those of producers (326) and of transactional ones (39)."""

Table = list[tuple[str, ...]]


def page() -> str:
    """Return the whole page."""
    assert set(TITLES) == set(headers.__all__), "a group of headers has no title here, or the other way round"
    parts = [HEAD, _contents(), REFUSED_HEAD + _refused()]
    for name, title in TITLES.items():
        module: ModuleType = getattr(headers, name)
        parts.append(f"## {title}\n")
        parts += [_request(line) for line in _lines() if line.header.__module__ == module.__name__]
    return "\n".join(parts)


def _lines() -> list[RequestType]:
    return sorted(REQUESTS.values(), key=lambda line: line.code)


def _contents() -> str:
    rows: Table = [("code", "name", "answered by", "class", "purpose")]
    by = answered()
    rows += [
        (
            str(line.code), line.name, ", ".join(who for who, codes in by.items() if line.code in codes),
            f"`{line.header.__name__}`", _first_sentence(line.header),
        )
        for line in _lines()
    ]  # fmt: skip
    return markdown(rows)


def answered() -> dict[str, frozenset[int]]:
    """Return the codes that each answers, as a broker and a name server with nothing in them have them."""
    with TemporaryDirectory() as directory:
        broker = Broker(BrokerSettings(), StoreSettings(commit_log_file_bytes=65536), RealDisk(directory), Random(0), instant(0))
        codes = broker.codes()
        broker.close(instant(0))
    return {"broker": codes, "ns": NameServer(NameServerSettings()).codes(), "client": CLIENT}


def _refused() -> str:
    rows: Table = [("code", "name", "why")]
    rows += [(str(code), refused.name, refused.reason) for code, refused in sorted(REFUSED.items())]
    return markdown(rows)


def _request(line: RequestType) -> str:
    marks = [f"since {line.since}"] if line.since != "4.7.1" else []
    title = f"### {line.code} {line.name}" + (f" ({', '.join(marks)})" if marks else "")
    needs = line.needs.text(line.names) if line.needs is not None else ""
    changes = " A slave refuses it." if line.changes else ""
    parts = [title, "", f"{_text(line.header)} Needs {needs}.{changes}", "", _fields(line.header, "No fields.")]
    if fields := _fields(line.reply, ""):
        parts += [f"Reply `{line.reply.__name__}`: {_text(line.reply)}", "", fields]
    return "\n".join(parts)


def _fields(cls: type[Header], empty: str) -> str:
    fields = msgspec.structs.fields(cls)
    if not fields:
        return f"{empty}\n" if empty else ""
    rows: Table = [("field", "attribute", "type", "required")]
    rows += [(f"`{field.encode_name}`", f"`{field.name}`", _kind(field.type), "yes" if field.required else "") for field in fields]
    return markdown(rows)


def _kind(kind: Any) -> str:
    inner = [part for part in get_args(kind) if part is not type(None)] if type(None) in get_args(kind) else [kind]
    limits = getattr(inner[0], "__metadata__", None)
    if limits:
        return f"i{limits[0].le.bit_length() + 1}"
    return str(inner[0].__name__)


def _text(cls: type[Header]) -> str:
    return " ".join((inspect.getdoc(cls) or "").split())


def _first_sentence(cls: type[Header]) -> str:
    return _text(cls).partition(". ")[0].removesuffix(".") + "."


def markdown(rows: Table) -> str:
    """Return a table, its head first."""
    head, *rest = rows
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, *rest)]
    lines.insert(1, "|" + " --- |" * len(head))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), sys.argv[1:]))
