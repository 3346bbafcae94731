"""Facts as HTML and as JSON. Templates escape markup, and ``shown`` escapes invisible characters."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.environment import TemplateModule
from markupsafe import Markup

from halfmoon.console.access.database import now_ms
from halfmoon.console.charts import Series, bar_chart, line_chart, sparkline
from halfmoon.console.folding import folded
from halfmoon.console.page import REASON_MAX, Facts, Page
from halfmoon.console.tables import Column, worth_showing
from halfmoon.console.visitors import Visitor
from halfmoon.logs import escaped
from halfmoon.shown.texts import rate_text, share_text, size_text, span_text, time_text

HERE = Path(__file__).parent
STATIC = HERE / "static"


class Renderer:
    """Templates of the console. ``pages``: those with a group are in the menu, which every page links to."""

    def __init__(self, pages: Sequence[Page]) -> None:
        menu: dict[str, list[Page]] = {}
        for page in pages:
            if page.menu:
                menu.setdefault(page.menu, []).append(page)
        self._fragments: dict[str, tuple[Facts, str]] = {}
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        self._environment.filters.update(
            shown=lambda value: escaped(str(value)), time=time_text, span=span_text, rate=rate_text, share=share_text,
            count=lambda number: f"{number:,}", size=lambda size: "-" if size is None else size_text(size), ago=ago_text,
            clock=clock_text, pairs=pairs, folded=folded, marked=marked,
        )  # fmt: skip
        version = sha256(b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()))).hexdigest()[:16]
        self._environment.globals.update(
            menu=menu, titles={page.path: page.title for page in pages}, version=version, at=at, clock_ms=now_ms,
            once=lambda: secrets.token_urlsafe(12), line_chart=line_chart, bar_chart=bar_chart, sparkline=sparkline, Series=Series,
            share_text=share_text, size_text=size_text, span_text=span_text, col=Column, worth_showing=worth_showing,
            reason_max=REASON_MAX,
        )  # fmt: skip

    async def warm(self) -> None:
        """Compile all templates, one after the other between answers: else the first request of each page waits for its own."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)
            await asyncio.sleep(0)

    def json(self, facts: Facts) -> bytes:
        """Return facts as JSON."""
        return msgspec.json.encode(facts) + b"\n"

    def page(self, page: Page, facts: Facts, visitor: Visitor, values: Mapping[str, str]) -> str:
        """Return a page, and remove the notice that it shows. A fragment of the same facts object is rendered once for all."""
        path, here = page.under if page.fragment else page.path, page.under or page.path
        shown = {**facts, "path": path, "here": here, "values": defaultdict(str, values)}
        if not page.fragment:
            shown["notice"], visitor.session.notice = visitor.session.notice, ""
            return self.plain(page.template, page.title, visitor, **shown)
        if self._fragments.get(page.path, ({}, ""))[0] is not facts:
            self._fragments[page.path] = facts, str(self._content(page.template, visitor, shown))
        return self._fragments[page.path][1]

    def plain(self, template: str, title: str, visitor: Visitor | None, /, **facts: Any) -> str:
        """Return a page around a rendered template; without a visitor it has no menu."""
        shown = {"csrf": visitor.session.csrf if visitor else "", "here": "", "notice": "", "values": {}, **facts}
        content = self._content(template, visitor, shown)
        heading = getattr(content, "heading", shown.get("heading", ""))  # what the page is of, as its template or its facts say
        return self._environment.get_template("base.html").render(
            shown, title=title, heading=heading, visitor=visitor, content=content
        )

    def _content(self, template: str, visitor: Visitor | None, facts: Facts) -> TemplateModule:
        context = {**facts, "visitor": visitor}
        parts = self._environment.get_template("parts.html").make_module(context)
        return self._environment.get_template(template).make_module({**context, "parts": parts})


def at(path: str, **query: Any) -> str:
    """Return the address of a page with a query; None and empty values are left out."""
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def ago_text(ms: int) -> str:
    """Return how long ago a time was, or how far ahead it is, rounded: ``3 min ago``, ``in 2 h``."""
    past_ms = now_ms() - ms
    seconds = abs(past_ms) // 1000
    if seconds < 1:
        return "now"
    count, unit = next((seconds // size, unit) for size, unit in _AGES if seconds >= size)
    return f"{count:,} {unit} ago" if past_ms > 0 else f"in {count:,} {unit}"


_AGES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def clock_text(ms: int) -> str:
    """Return a time in full: ``2026-01-31 08:00:00.123 UTC``."""
    return time_text(ms).replace("T", " ").replace("Z", " UTC")


def marked(text: str) -> Markup:
    """Return a text in which what stands between backticks is code."""
    parts = escaped(text).split("`")
    return Markup("").join(Markup("<code>{}</code>" if at % 2 else "{}").format(part) for at, part in enumerate(parts))


def pairs(table: Mapping[str, Any]) -> list[Facts]:
    """Return a row for each name and value."""
    return [{"name": name, "value": value} for name, value in table.items()]
