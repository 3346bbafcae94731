"""Plots of the results of jobs, as PNG files: lag over time, latency percentiles of transactions, lateness of delayed messages.

Needs matplotlib, of the extra ``lake``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from halfmoon.spark.jobs.lag import Sample

COLOURS = ("#3b6fb6", "#d1662f", "#4a9a64", "#8a5fa8", "#b03a48", "#7f7f7f")
STATE_COLOURS = {"COMMITTED": COLOURS[0], "ROLLED_BACK": COLOURS[1], "EXPIRED": COLOURS[4], "DECIDED": COLOURS[5]}
MANY_COLOURS = tuple(to_hex(each) for each in colormaps["tab20"].colors)  # type: ignore[attr-defined]
ENTRIES = 5
"""Lines of a legend with one column."""

UNITS = (("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("days", 86_400_000))
SECONDS = UNITS[1:]
TICKS = {
    1: "1 ms", 10: "10 ms", 100: "100 ms", 1_000: "1 s", 10_000: "10 s", 60_000: "1 min", 600_000: "10 min", 3_600_000: "1 h",
    36_000_000: "10 h", 360_000_000: "100 h", 3_600_000_000: "1,000 h",
}  # fmt: skip
"""Marks of a logarithmic axis of times in ms."""

SPAN_MS_MIN = 10_000
"""Shortest axis of times, so that its marks differ by seconds."""

MARKS = (50, 95, 99)
"""Percentiles whose values are written into the plot."""
_DAY_MS = 86_400_000


def lag_plot(path: Path, group: str, samples: Sequence[Sample]) -> None:
    """Draw the lag of a group over time, one line a topic: messages above, time below."""
    figure, (above, below) = _figure(2, f"Lag of {group}")
    unit, unit_ms = _unit(max((sample.behind_ms for sample in samples), default=0), SECONDS)
    for number, topic in enumerate(sorted({sample.topic for sample in samples})):
        of_topic = [sample for sample in samples if sample.topic == topic]
        times = [sample.at_ms / _DAY_MS for sample in of_topic]
        style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": "o", "markersize": 3, "clip_on": False}
        above.plot(times, [sample.messages for sample in of_topic], label=topic, **style)
        below.plot(times, [sample.behind_ms / unit_ms for sample in of_topic], **style)
    above.set_ylabel("messages waiting")
    above.yaxis.set_major_locator(MaxNLocator(integer=True))
    above.set_ylim(0, max(1, 1.08 * max((sample.messages for sample in samples), default=0)))
    below.set_ylabel(f"behind ({unit})")
    below.set_ylim(0, max(0.1, 1.08 * max((sample.behind_ms for sample in samples), default=0) / unit_ms))
    for axes in (above, below):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    figure.align_ylabels()
    _times(above, below, samples)
    if len(above.lines) > 1:
        above.legend(frameon=False, ncols=min(4, len(above.lines)), loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    _save(figure, path)


def _times(above: Axes, below: Axes, samples: Sequence[Sample]) -> None:
    """Format the time axis of both panels."""
    first, last = (samples[0].at_ms, samples[-1].at_ms) if samples else (0, 0)
    room = max((last - first) * 0.02, (SPAN_MS_MIN - (last - first)) / 2)
    form = "%m-%d %H:%M" if last - first > _DAY_MS else "%H:%M:%S"
    for axes in (above, below):
        axes.xaxis_date()
        axes.set_xlim((first - room) / _DAY_MS, (last + room) / _DAY_MS)
        axes.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=7))  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(FuncFormatter(lambda day, _: f"{_time(day):{form}}"))
    above.tick_params(labelbottom=False)
    below.set_xlabel(f"UTC, {_time(first / _DAY_MS):%Y-%m-%d}" if samples else "UTC")
    if not samples:
        _nothing(above, below)


def latency_plot(path: Path, curves: Mapping[str, Sequence[float]], counts: Mapping[str, int]) -> None:
    """Draw the latency of decisions: a curve of percentiles for each state, on a logarithmic scale, marked at p50, p95 and p99."""
    figure, (axes,) = _figure(1, "From half message to decision", entries=len(curves))
    for number, (state, curve) in enumerate(sorted(curves.items())):
        colour = STATE_COLOURS.get(state, COLOURS[number % len(COLOURS)])
        label = f"{state.lower().replace('_', ' ')} ({counts.get(state, 0):,})"
        _curve(axes, [max(ms, 0.5) for ms in curve], curve, colour, label)
    axes.set_yscale("log")
    low, high = max(0.5, min((curve[0] for curve in curves.values()), default=1)), max(map(max, curves.values()), default=1)
    axes.set_ylim(max(ms for ms in (0.4, *TICKS) if ms < low), min(ms for ms in (*TICKS, 10 * high) if ms > high))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(FixedLocator(list(TICKS)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: TICKS.get(round(value), "")))
    axes.set_ylabel("time to decision")
    _percentiles(axes)
    _save(figure, path)


def lateness_plot(path: Path, curves: Mapping[int, Sequence[float]], counts: Mapping[int, int]) -> None:
    """Draw the lateness of delayed messages: a curve of percentiles for each level; negative is early."""
    figure, (axes,) = _figure(1, "Delayed messages: delivered minus due", entries=len(curves))
    unit, unit_ms = _unit(max((abs(ms) for curve in curves.values() for ms in curve), default=0), UNITS)
    for number, (level, curve) in enumerate(sorted(curves.items())):
        name = "point in time" if level == 0 else f"level {level}"
        palette = COLOURS if len(curves) <= len(COLOURS) else MANY_COLOURS
        drawn = [ms / unit_ms for ms in curve]
        _curve(axes, drawn, curve, palette[number % len(palette)], f"{name} ({counts.get(level, 0):,})")
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set_ylabel(f"lateness ({unit})")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    _percentiles(axes)
    _save(figure, path)


def _curve(axes: Axes, drawn: Sequence[float], values: Sequence[float], colour: str, label: str) -> None:
    axes.plot(range(len(drawn)), drawn, color=colour, label=label, linewidth=1.8)
    for mark in MARKS:
        axes.plot([mark], [drawn[mark]], "o", color=colour, markersize=4)
    named = " · ".join(f"p{mark} {_span(values[mark])}" for mark in MARKS)
    axes.lines[-len(MARKS) - 1].set_label(f"{label}   {named}")


def _percentiles(axes: Axes) -> None:
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 25, 50, 75, 95, 99])
    axes.set_xlabel("percentile")
    if entries := len(axes.get_legend_handles_labels()[0]):
        columns = 1 if entries <= ENTRIES else 2
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, fontsize=9, ncols=columns)
    else:
        _nothing(axes)


def _nothing(*where: Axes) -> None:
    """Write "nothing to draw" into the plot."""
    for axes in where:
        axes.set_xticks([])
        axes.set_yticks([], minor=False)
        axes.set_yticks([], minor=True)
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", color="#777777")


def _unit(ms: float, units: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Return name and ms of the largest unit that fits into a time twice, else of the first unit."""
    return next((unit for unit in reversed(units) if ms >= 2 * unit[1]), units[0])


def _time(day: float) -> datetime:
    """Return the time of a number of days since the epoch, as matplotlib counts them."""
    return datetime.fromtimestamp(round(day * _DAY_MS) / 1000, UTC)


def _span(ms: float) -> str:
    """Return milliseconds for people."""
    if abs(ms) < 1000:
        return f"{round(ms)} ms"
    seconds = ms / 1000
    return (
        f"{seconds:.3g} s"
        if abs(seconds) < 120
        else f"{seconds / 60:.3g} min"
        if abs(seconds) < 7200
        else f"{seconds / 3600:.3g} h"
    )


def _figure(rows: int, title: str, *, entries: int = 0) -> tuple[Figure, list[Axes]]:
    """Return a figure; a long legend makes it higher."""
    height = 3.2 * rows if rows > 1 else 4.8 + 0.2 * max(0, math.ceil(entries / 2) - ENTRIES)
    figure = Figure(figsize=(9, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, 1, number + 1) for number in range(rows)]
    for panel in axes:
        panel.grid(True, color="#e4e4e4", linewidth=0.7)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, format="png")
