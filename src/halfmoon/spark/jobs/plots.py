"""Pictures of what jobs found, as PNG files: lag over time, latency percentiles of transactions, lateness of delayed messages.

Draws numbers it is given; needs matplotlib, of the extra ``lake``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from halfmoon.spark.jobs.lag import Sample

COLOURS = ("#3b6fb6", "#d1662f", "#4a9a64", "#8a5fa8", "#b03a48", "#7f7f7f")
STATE_COLOURS = {"COMMITTED": COLOURS[0], "ROLLED_BACK": COLOURS[1], "GIVEN_UP": COLOURS[4], "DECIDED": COLOURS[5]}
MARKS = (50, 95, 99)
"""Percentiles whose values are written into the picture."""
_DAY_MS = 86_400_000


def lag_plot(path: Path, group: str, found: Sequence[Sample]) -> None:
    """Draw the lag of a group over time, one line a topic: messages above, time below."""
    figure, (above, below) = _figure(2, f"Lag of {group}")
    for number, topic in enumerate(sorted({one.topic for one in found})):
        mine = [one for one in found if one.topic == topic]
        times = [one.at_ms / _DAY_MS for one in mine]
        colour = COLOURS[number % len(COLOURS)]
        above.plot(times, [one.messages for one in mine], color=colour, label=topic, marker="o", markersize=3)
        below.plot(times, [one.behind_ms / 1000 for one in mine], color=colour, marker="o", markersize=3)
    above.set_ylabel("messages waiting")
    above.yaxis.set_major_locator(MaxNLocator(integer=True))
    above.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    below.set_ylabel("seconds behind")
    long = bool(found) and found[-1].at_ms - found[0].at_ms > 86_400_000
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.xaxis_date()
        axes.xaxis.set_major_formatter(FuncFormatter(lambda day, _: f"{_time(day):{'%m-%d %H:%M' if long else '%H:%M:%S'}}"))
    above.tick_params(labelbottom=False)
    day = f", {_time(found[0].at_ms / _DAY_MS):%Y-%m-%d}" if found else ""
    below.set_xlabel(f"UTC{day}")
    if len(above.lines) > 1:
        above.legend(frameon=False)
    _save(figure, path)


def latency_plot(path: Path, curves: Mapping[str, Sequence[float]], counts: Mapping[str, int]) -> None:
    """Draw how long decisions took: a curve of percentiles a state, ms on a logarithmic scale, p50, p95 and p99 written at it."""
    figure, (axes,) = _figure(1, "From half message to decision")
    for number, (state, curve) in enumerate(sorted(curves.items())):
        colour = STATE_COLOURS.get(state, COLOURS[number % len(COLOURS)])
        label = f"{state.lower().replace('_', ' ')} ({counts.get(state, 0):,})"
        _curve(axes, [max(each, 0.5) for each in curve], curve, colour, label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _span(value)))
    axes.set_ylabel("time to decision")
    _percentiles(axes)
    _save(figure, path)


def lateness_plot(path: Path, curves: Mapping[int, Sequence[float]], counts: Mapping[int, int]) -> None:
    """Draw how late delayed messages came: a curve of percentiles a level, ms; below 0 is before their time."""
    figure, (axes,) = _figure(1, "Delayed messages: delivered minus due")
    for number, (level, curve) in enumerate(sorted(curves.items())):
        name = "point in time" if level == 0 else f"level {level}"
        _curve(axes, curve, curve, COLOURS[number % len(COLOURS)], f"{name} ({counts.get(level, 0):,})")
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set_ylabel("lateness (ms)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _percentiles(axes)
    _save(figure, path)


def _curve(axes: Axes, drawn: Sequence[float], told: Sequence[float], colour: str, label: str) -> None:
    axes.plot(range(len(drawn)), drawn, color=colour, label=label, linewidth=1.8)
    for mark in MARKS:
        axes.plot([mark], [drawn[mark]], "o", color=colour, markersize=4)
    named = " · ".join(f"p{mark} {_span(told[mark])}" for mark in MARKS)
    axes.lines[-len(MARKS) - 1].set_label(f"{label}   {named}")


def _percentiles(axes: Axes) -> None:
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 25, 50, 75, 95, 99])
    axes.set_xlabel("percentile")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, fontsize=9)
    else:
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", color="#777777")


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


def _figure(rows: int, title: str) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(9, 3.2 * rows if rows > 1 else 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, 1, number + 1) for number in range(rows)]
    for one in axes:
        one.grid(True, color="#e4e4e4", linewidth=0.7)
        one.set_axisbelow(True)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, format="png")
