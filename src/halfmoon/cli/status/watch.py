"""`halfmoon status --watch`: a live screen of a cluster. Without a terminal, or as JSON, a line each time."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from shutil import get_terminal_size

from halfmoon.cli.shared.lines import plain, say
from halfmoon.cli.shared.output import full_screen, show_json, styled
from halfmoon.results import BrokerStatus, ClusterStatus
from halfmoon.shown.texts import rate_text, share_text, span_text, time_text

HISTORY = 60
"""Rates that are drawn."""
_BARS = "▁▂▃▄▅▆▇█"
_DIM, _BOLD, _YELLOW = "2", "1", "33"
_COLOURS = {"healthy": "1;32", "degraded": "1;33", "down": "1;31", "no access": "1;31"}


def watch(ask: Callable[[], ClusterStatus], interval_ms: int, *, as_json: bool) -> None:
    """Show the result of ``ask`` repeatedly, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            _lines(ask, interval_ms, as_json=as_json)
        else:
            _live(ask, interval_ms)


def _lines(ask: Callable[[], ClusterStatus], interval_ms: int, *, as_json: bool) -> None:
    while True:
        status = ask()
        if as_json:
            show_json(status)
        else:
            say(" ".join((time_text(status.at_ms), *line(status))))
        _wait(interval_ms)


def _live(ask: Callable[[], ClusterStatus], interval_ms: int) -> None:
    screen = Screen(interval_ms)
    with full_screen() as draw:
        draw(["asking the cluster …"])
        while True:
            screen.see(ask())
            draw(styled(text, style) for text, style in screen.lines(*get_terminal_size()))
            _wait(interval_ms)


def _wait(interval_ms: int) -> None:
    time.sleep(interval_ms / 1000)


def line(status: ClusterStatus) -> list[str]:
    """Return a status as words, the health first."""
    words = [status.health]
    if status.brokers:
        words.append(f"in {_rate(status, 'in_per_second')}/s out {_rate(status, 'out_per_second')}/s")
        words.append(f"behind {sum(behind.messages for behind in status.backlog.values()):,}")
        words.append(_pending(status.brokers))
        words.append(f"disk {share_text(max(broker.disk_used or 0.0 for broker in status.brokers) or None)}")
    return [*words, *(f"[{plain(fault)}]" for fault in status.faults)]


class Screen:
    """Screen of the newest status, with the rates of earlier ones."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._before: ClusterStatus | None = None
        self._now: ClusterStatus | None = None
        self._in: deque[float] = deque(maxlen=HISTORY)
        self._out: deque[float] = deque(maxlen=HISTORY)

    def see(self, status: ClusterStatus) -> None:
        """Take the newest status."""
        self._before, self._now = self._now, status
        self._in.append(sum(broker.in_per_second for broker in status.brokers))
        self._out.append(sum(broker.out_per_second for broker in status.brokers))

    def lines(self, width: int, height: int) -> list[tuple[str, str]]:
        """Return the lines of the screen with their styles, cut to the room that there is; groups without room are counted."""
        status = self._now
        if status is None:
            return []
        head: list[tuple[str, str]] = [
            (status.health, _COLOURS[status.health]),
            (f"{time_text(status.at_ms)}, every {span_text(self._interval_ms)}, Ctrl-C ends", _DIM),
            *((f"! {plain(fault)}", _YELLOW) for fault in status.faults),
        ]
        if status.brokers:
            room = max(1, min(HISTORY, width - 24))
            head += [
                ("", ""),
                (f"in  {_rate(status, 'in_per_second'):>9}/s  {bars(list(self._in)[-room:])}", ""),
                (f"out {_rate(status, 'out_per_second'):>9}/s  {bars(list(self._out)[-room:])}", ""),
                ("", ""),
                *((_broker_line(broker), "") for broker in status.brokers),
            ]
        lines = [*head, ("", ""), *self._groups(max(1, height - len(head) - 3))]
        return [(text if len(text) <= width else text[: max(0, width - 1)] + "…", style) for text, style in lines[: max(1, height)]]

    def _groups(self, room: int) -> list[tuple[str, str]]:
        """Return the groups that are behind, those furthest behind first."""
        assert self._now is not None
        late = sorted((behind.messages, group) for group, behind in self._now.backlog.items() if behind.messages)[::-1]
        if not late:
            return [(_consumed_text(len(self._now.backlog)), _DIM)] if self._now.backlog else []
        widest = min(40, max(len(group) for _, group in late[:room]))
        lines = [("behind:", _BOLD)]
        for messages, group in late[:room]:
            for_ms = self._now.backlog[group].behind_ms
            age = "" if for_ms is None else f" for {span_text(for_ms)}"
            lines.append((f"{plain(group):{widest}} {messages:>11,}{age}{self._change(group, messages)}", ""))
        if len(late) > room:
            lines.append((f"and {len(late) - room:,} more groups", _DIM))
        return lines

    def _change(self, group: str, messages: int) -> str:
        """Return the rate at which a group falls back or catches up."""
        assert self._now is not None
        if self._before is None or group not in self._before.backlog or self._now.at_ms <= self._before.at_ms:
            return ""
        more = (messages - self._before.backlog[group].messages) * 1000 / (self._now.at_ms - self._before.at_ms)
        return "" if not more else f", {'falling back' if more > 0 else 'catching up'} {abs(more):,.0f}/s"


def bars(values: list[float]) -> str:
    """Return numbers as a row of bars; the highest is as high as a line."""
    highest = max(values, default=0.0)
    return "".join(_BARS[min(len(_BARS) - 1, int(value / highest * len(_BARS)))] if highest else _BARS[0] for value in values)


def _consumed_text(groups: int) -> str:
    return "1 group has consumed all" if groups == 1 else f"{groups:,} groups have consumed all"


def _rate(status: ClusterStatus, field: str) -> str:
    return rate_text(sum(getattr(broker, field) for broker in status.brokers))


def _pending(brokers: list[BrokerStatus]) -> str:
    count = sum(broker.transactions_pending or 0 for broker in brokers)
    ages = [broker.oldest_pending_ms for broker in brokers if broker.oldest_pending_ms is not None]
    return f"pending {count:,}" + (f" for {span_text(max(ages))}" if ages else "")


def _broker_line(broker: BrokerStatus) -> str:
    if broker.version is None:
        return plain(f"{broker.name}/{broker.id} {broker.fault}")
    refused = "" if not broker.requests_refused else f", refused {broker.requests_refused:,}"
    up = "" if broker.uptime_ms is None else f", up for {span_text(broker.uptime_ms)}"
    return f"{plain(broker.name)}/{broker.id}: {_pending([broker])}, disk {share_text(broker.disk_used)}{refused}{up}"
