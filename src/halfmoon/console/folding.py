"""JSON as a tree whose parts fold, without a script. Numbers and repeated names stand as they were written."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from halfmoon.logs import escaped

NODES_MAX, CHARS_MAX, OPEN_DEPTH = 1000, 16_384, 2
"""Largest tree and text that is folded, and down to which depth it is open at first."""


class _Number(str):
    """Number as it was written."""


class _Pairs(list[tuple[str, Any]]):
    """Names and values of an object."""


def folded(text: str) -> Markup | None:
    """Return JSON as HTML; None: it is none, of one value, or too large or deep for a tree."""
    if len(text) > CHARS_MAX:
        return None
    try:
        value = json.loads(text, parse_int=_Number, parse_float=_Number, object_pairs_hook=_Pairs)
        if not isinstance(value, list) or not value or _count(value) > NODES_MAX:
            return None
        return _node(Markup(), value, 0)
    except (ValueError, RecursionError):
        return None


def _count(value: Any) -> int:
    return 1 + sum(map(_count, _values(value))) if isinstance(value, list) else 1


def _values(value: list[Any]) -> list[Any]:
    return [each for _, each in value] if isinstance(value, _Pairs) else value


def _node(label: Markup, value: Any, depth: int) -> Markup:
    if not isinstance(value, list) or not value:
        return Markup("<div>{}{}</div>").format(label, _text(value))
    is_object = isinstance(value, _Pairs)
    names = [Markup("<b>{}</b>: ").format(escaped(name)) for name, _ in value] if is_object else [Markup()] * len(value)
    inner = Markup("").join(_node(name, each, depth + 1) for name, each in zip(names, _values(value)))
    count = f"{{{len(value):,}}}" if is_object else f"[{len(value):,}]"
    shown = Markup(" open") if depth < OPEN_DEPTH else Markup()
    return Markup("<details{}><summary>{}<i>{}</i></summary>{}</details>").format(shown, label, count, inner)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "{}" if isinstance(value, _Pairs) else "[]"
    return str(value) if isinstance(value, _Number) else escaped(json.dumps(value, ensure_ascii=False))
