"""Small charts as SVG: a page needs no script and no library for them. Pure functions, which templates call by name.

Under a drawing stand its facts as text, for those who do not see it or want numbers. Its colours are classes of the style sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import floor, isfinite, log10
from typing import NamedTuple, TypeGuard

from markupsafe import Markup

from halfmoon.logs import escaped
from halfmoon.shown.texts import rate_text, time_text

WIDTH, HEIGHT, TOP, BOTTOM = 360, 140, 18, 120
"""Size of a drawing, and where its lines or bars begin and end, in pixels."""
COLUMNS = 180
"""Points of a line; each is the highest of the values that fall on it, and a gap if one of them is missing."""
BARS_MAX = 40
Point = tuple[int, float | None]


class Series(NamedTuple):
    """Line of a chart: its name, and its points in order, each a time in ms since the epoch and a value; None: a gap."""

    label: str
    points: Sequence[Point]


def line_chart(
    title: str, series: Sequence[Series], span_ms: tuple[int, int], *, text: Callable[[float], str] = rate_text, top: float = 0
) -> Markup:
    """Return lines over the time from ``span_ms[0]`` to ``span_ms[1]``.

    The axis begins at 0 and ends at ``top`` or higher, where a value is. Values that are no finite numbers are gaps.
    """
    known = [[value for _, value in each.points if _is_number(value)] for each in series]
    top = _round_up(max([top, *(value for values in known for value in values)]))
    lines = Markup("").join(
        Markup('<path class="line-{}" d="{}"/>').format(at, _path(each.points, span_ms, top)) for at, each in enumerate(series)
    )
    texts = [f"{each.label}: {_summary(each.points, values, text)}" for each, values in zip(series, known)]
    places = (0, "start", span_ms[0]), (WIDTH // 2, "middle", sum(span_ms) // 2), (WIDTH, "end", span_ms[1])
    times = [(x, at, time_text(ms)[11:16] + (" UTC" if at == "end" else "")) for x, at, ms in places]
    return _figure(title, texts, lines, text(top), times, keys=len(series) > 1)


def bar_chart(title: str, bars: Sequence[tuple[str, float]], *, text: Callable[[float], str] = rate_text) -> Markup:
    """Return a bar for each label and value, at most `BARS_MAX`; values that are no finite numbers count as 0."""
    bars = [(label, max(0.0, value) if _is_number(value) else 0.0) for label, value in bars[:BARS_MAX]]
    top = _round_up(max([0.0, *(value for _, value in bars)]))
    width, every = WIDTH / max(1, len(bars)), max(1, -(-len(bars) // 6))
    drawn = Markup("").join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(at * width + 1, y, width - 2, BOTTOM - y)
        for at, y in enumerate(_y(value, top) for _, value in bars)
    )
    labels = [(round((at + 0.5) * width), "middle", label) for at, (label, _) in enumerate(bars) if at % every == 0]
    return _figure(title, [f"{label}: {text(value)}" for label, value in bars] or ["none"], drawn, text(top), labels)


def _figure(
    title: str, texts: Sequence[str], drawn: Markup, top: str, labels: Iterable[tuple[int, str, str]], *, keys: bool = False
) -> Markup:
    under = Markup("").join(
        Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, HEIGHT - 4, anchor, escaped(label))
        for x, anchor, label in labels
    )
    key = '<i class="key-{}"></i>{}' if keys else "{1}"
    said = Markup("<br/>" if keys else "; ").join(Markup(key).format(at, escaped(text)) for at, text in enumerate(texts))
    return Markup(
        '<figure class="chart"><figcaption>{title}</figcaption><svg viewBox="0 0 {width} {height}" role="img">'
        '<title>{title}</title><desc>{desc}</desc><path class="axis" d="M0 {top}H{width}M0 {bottom}H{width}"/>'
        '<text x="0" y="{above}">{most}</text>'
        "{drawn}{under}</svg><p>{said}</p></figure>"
    ).format(
        title=escaped(title), width=WIDTH, height=HEIGHT, desc="; ".join(map(escaped, texts)), top=TOP, bottom=BOTTOM,
        above=TOP - 5, most=top, drawn=drawn, under=under, said=said,
    )  # fmt: skip


def _path(points: Sequence[Point], span_ms: tuple[int, int], top: float) -> str:
    """Return a line as SVG writes it: a move where it begins and after each gap, of one point a dot."""
    start_ms, end_ms = span_ms
    columns: dict[int, float | None] = {}
    for at_ms, value in points:
        if start_ms <= at_ms <= end_ms:
            column = (at_ms - start_ms) * COLUMNS // max(1, end_ms - start_ms)
            before = columns.get(column, 0.0)
            columns[column] = max(before or 0.0, value) if before is not None and _is_number(value) else None
    parts, is_gap = [], True
    for column, highest in columns.items():
        if highest is None:
            is_gap = True
            continue
        place = f"{column * WIDTH // COLUMNS} {_y(highest, top):.1f}"
        parts.append(f"M{place}h.1" if is_gap else f"L{place}")
        is_gap = False
    return "".join(parts) or "M0 0"


def _summary(points: Sequence[Point], known: Sequence[float], text: Callable[[float], str]) -> str:
    if not known:
        return "not known"
    newest = points[-1][1]
    return f"{text(newest) if _is_number(newest) else 'not known'} now, from {text(min(known))} to {text(max(known))}"


def _y(value: float, top: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * min(1.0, max(0.0, value / top))


def _round_up(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is not below a value; 1 for 0."""
    if not 1e-9 < value < 1e300:
        return max(1.0, value)
    power = 10.0 ** floor(log10(value))
    return next((power * step for step in (1, 2, 5) if power * step >= value), power * 10)


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and isfinite(value)
