"""Small charts as SVG: a page needs no script and no library for them. Pure functions, which templates call by name.

Below a drawing stand its facts as text, for those who do not see it or want numbers; the script shows the values under the pointer
from the figures in ``data-chart``. Colours are classes of the style sheet, and widths are shares of the page's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, floor, isfinite, log10
from typing import NamedTuple, TypeGuard

import msgspec
from markupsafe import Markup

from halfmoon.logs import escaped
from halfmoon.shown.texts import rate_text, time_text

WIDTH, HEIGHT, TOP, BOTTOM = 360, 168, 14, 144
"""Width in which lines are drawn, before they are stretched to the page; height of a drawing; where its values begin and end."""
COLUMNS = 180
"""Points of a line; each is the highest of the values that fall on it, and a gap if one of them is missing."""
BARS_MAX, TICKS = 40, 5
SPARK_WIDTH, SPARK_HEIGHT = 80, 20
STEPS = (1, 2, 2.5, 5, 10)
"""Distances between grid lines, times a power of ten."""
TIME_STEPS_MS = tuple(1000 * s for s in (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400))
Point = tuple[int, float | None]


class Series(NamedTuple):
    """Line of a chart: its name, and its points in order, each a time in ms since the epoch and a value; None: a gap."""

    label: str
    points: Sequence[Point]


def line_chart(
    title: str, series: Sequence[Series], span_ms: tuple[int, int], *, text: Callable[[float], str] = rate_text, top: float = 0,
    unit: str = "number",
) -> Markup:  # fmt: skip
    """Return lines over the time from ``span_ms[0]`` to ``span_ms[1]``.

    The axis begins at 0 and ends at the first grid line that is not below ``top`` and all values. Values that are no finite numbers
    are gaps. ``unit``: number, count (whole numbers alone) or share.
    """
    known = [[value for _, value in each.points if _is_number(value)] for each in series]
    ticks = _ticks(max([top, *(value for values in known for value in values)]), 1.0 if unit == "count" else 0.0)
    columns = [_columns(each.points, span_ms) for each in series]
    lines = Markup("").join(
        Markup('<path class="line-{}" d="{}"/>').format(at, _path(each, ticks[-1])) for at, each in enumerate(columns)
    )
    texts = [f"{each.label}: {_summary(each.points, values, text)}" for each, values in zip(series, known)]
    values = [[None if (value := each.get(at)) is None else float(f"{value:.4g}") for at in range(COLUMNS + 1)] for each in columns]
    data = {"span": span_ms, "unit": unit, "labels": [escaped(each.label) for each in series], "values": values}
    return _figure(title, texts, lines, [_tick_text(each, unit) for each in ticks], _times(span_ms), keys=len(series), data=data)


def bar_chart(title: str, bars: Sequence[tuple[str, float]], *, text: Callable[[float], str] = rate_text) -> Markup:
    """Return a bar for each label and value, at most `BARS_MAX`; values that are no finite numbers count as 0."""
    bars = [(label, max(0.0, value) if _is_number(value) else 0.0) for label, value in bars[:BARS_MAX]]
    ticks = _ticks(max([0.0, *(value for _, value in bars)]), 1.0)
    width, every = WIDTH / max(1, len(bars)), max(1, -(-len(bars) // 6))
    drawn = Markup("").join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>').format(
            at * width + 1, y, width - 2, BOTTOM - y, escaped(f"{label}: {text(value)}")
        )
        for at, (label, value) in enumerate(bars)
        for y in [_y(value, ticks[-1])]
    )
    labels = [(100 * (at + 0.5) / len(bars), label) for at, (label, _) in enumerate(bars) if at % every == 0]
    return _figure(
        title, [f"{label}: {text(value)}" for label, value in bars] or ["none"], drawn, [*map(_tick_text, ticks)], labels
    )


def sparkline(title: str, values: Sequence[float | None]) -> Markup:
    """Return a line as high as a row of a table, from 0 to its highest value."""
    known = [value for value in values if _is_number(value)]
    top, step = max([1.0, *known]), SPARK_WIDTH / max(1, len(values) - 1)
    parts, is_gap = [], True
    for at, value in enumerate(values):
        if _is_number(value):
            y = 1 + (SPARK_HEIGHT - 2) * (1 - min(1.0, max(0.0, value / top)))
            parts.append(f"{'M' if is_gap else 'L'}{at * step:.1f} {y:.1f}")
        is_gap = not _is_number(value)
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img"><title>{}</title><path d="{}"/></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, escaped(title), "".join(parts) or "M0 0")  # fmt: skip


def _figure(
    title: str, texts: Sequence[str], drawn: Markup, ticks: Sequence[str], labels: Iterable[tuple[float, str]], *, keys: int = 0,
    data: object = None,
) -> Markup:  # fmt: skip
    heights = [BOTTOM - (BOTTOM - TOP) * at / (len(ticks) - 1) for at in range(len(ticks))]
    # bars are high on the left as a rule, and lines of interest on the right
    side = Markup('x="0"' if keys else 'x="100%" text-anchor="end"')
    grid = Markup("").join(Markup('<path class="axis" d="M0 {0:.1f}H{1}"/>').format(y, WIDTH) for y in heights)
    beside = Markup("").join(
        Markup('<text {} y="{:.1f}">{}</text>').format(side, y - 3, tick) for y, tick in zip(heights, ticks) if y < BOTTOM
    )
    under = Markup("").join(
        Markup('<text x="{:.1f}%" y="{}" text-anchor="middle">{}</text>').format(x, HEIGHT - 6, escaped(label))
        for x, label in labels
        if 4 <= x <= 96
    )
    key = '<li><i class="key-{}"></i>{}</li>' if keys else "<li>{1}</li>"
    said = Markup("").join(Markup(key).format(at, escaped(text)) for at, text in enumerate(texts))
    shown = Markup(' data-chart="{}"').format(msgspec.json.encode(data).decode()) if data else ""
    return Markup(
        '<figure class="chart"{shown}><figcaption>{title}</figcaption><svg width="100%" height="{height}" role="img">'
        '<title>{title}</title><desc>{desc}</desc>'
        '<svg class="plot" aria-hidden="true" viewBox="0 0 {width} {height}" preserveAspectRatio="none">'
        "{grid}{drawn}</svg>{beside}{under}</svg><ul>{said}</ul></figure>"
    ).format(
        title=escaped(title), width=WIDTH, height=HEIGHT, desc="; ".join(map(escaped, texts)), grid=grid, drawn=drawn,
        beside=beside, under=under, said=said, shown=shown,
    )  # fmt: skip


def _columns(points: Sequence[Point], span_ms: tuple[int, int]) -> dict[int, float | None]:
    """Return the highest value of each column that has some, in the order of time; None: one of them is missing."""
    start_ms, end_ms = span_ms
    columns: dict[int, float | None] = {}
    for at_ms, value in points:
        if start_ms <= at_ms <= end_ms:
            column = (at_ms - start_ms) * COLUMNS // max(1, end_ms - start_ms)
            before = columns.get(column, 0.0)
            columns[column] = max(before or 0.0, value) if before is not None and _is_number(value) else None
    return columns


def _path(columns: dict[int, float | None], top: float) -> str:
    """Return a line as SVG writes it: a move where it begins and after each gap, of one point a dot."""
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


def _ticks(value: float, step_min: float = 0.0) -> list[float]:
    """Return the heights of the grid lines: from 0 on in round steps, the last not below a value and less than a step above it."""
    if not 1e-9 < value < 1e300:
        return [0.0, max(1.0, value)]
    power = 10.0 ** floor(log10(value / TICKS))
    step = max(step_min, next(power * each for each in STEPS if power * each * TICKS >= value * (1 - 1e-9)))
    return [step * at for at in range(ceil(value / step * (1 - 1e-9)) + 1)]


def _tick_text(value: float, unit: str = "number") -> str:
    return f"{100 * value:.10g}%" if unit == "share" else f"{value:,.10g}"


def _times(span_ms: tuple[int, int]) -> list[tuple[float, str]]:
    """Return the round times of a span, at most six, each with its place in percent of the width."""
    start_ms, end_ms = span_ms
    length_ms = max(1, end_ms - start_ms)
    step_ms = next((each for each in TIME_STEPS_MS if length_ms / each <= 5), length_ms)
    times = range(-(-start_ms // step_ms) * step_ms, end_ms + 1, step_ms)
    digits = slice(11, 19) if step_ms < 60_000 else slice(11, 16)
    return [(100 * (ms - start_ms) / length_ms, time_text(ms)[digits]) for ms in times]


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and isfinite(value)
