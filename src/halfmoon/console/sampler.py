"""Samples for the overview: figures of the cluster, asked for once for all visitors, and kept for half an hour.

One task asks, and waits for each answer before it asks again; looking causes no request. A cluster that does not answer leaves
gaps, and is asked less and less often until it answers.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from heapq import nlargest
from itertools import islice
from typing import Any, Self

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.access.database import now_ms
from halfmoon.errors import HalfmoonError, text_of
from halfmoon.results import Backlog, BrokerStatus, ClusterStatus, Finding
from halfmoon.shown.names import is_users_group

log = logging.getLogger("halfmoon.console")

SAMPLE_MS, PAUSE_MAX_MS = 2_000, 30_000
"""How often brokers are asked, and the longest pause while nothing answers: it doubles each time."""
BACKLOG_MS, KEPT_MS = 10_000, 30 * 60_000
MINUTE_MS, LONG_MS = 60_000, 24 * 3_600_000
"""Every sample is kept for half an hour; of each minute the highest for a day."""
SPAN_MS = 2 * 60_000
"""Least time that the charts show; they grow with what was measured, up to the range that is asked for."""
RANGES = {"5 min": 5 * 60_000, "30 min": KEPT_MS, "3 h": 3 * 3_600_000, "24 h": LONG_MS}
LAGS_MAX, DRAIN_MS = KEPT_MS // (3 * BACKLOG_MS), 5 * 60_000
"""Lags of each group that are kept, every third; and the time over which its decrease is measured."""
GROUPS_MAX, BEHIND_MAX = 500, 10
"""Most groups that are checked in one round, and most that are shown, the furthest behind."""
KEPT_MAX = GROUPS_MAX // 2
"""Most of them that are checked for their lag in the last round; the others are taken in turn."""
FINDINGS_MAX, FAILING_MAX = 50, 3
"""Most findings that are shown, and most brokers whose failures are shown with the lag."""
NOT_SEEN = ("down", "no access")
"""States of a cluster that tells nothing of itself."""
LIST_EVERY_MAX = 60
"""Most rounds between two lists of all groups: the more groups, the more rounds. A list of 100,000 is 20 MB."""

RATES = ("in_per_second", "out_per_second", "transactions_pending", "oldest_pending_ms", "disk_used", "requests_refused")
"""Figures of the cluster: sums over the brokers that answer, and the highest age and disk use."""


class Sampler:
    """Figures of the cluster as time goes by. Used with ``async with`` it samples until the end of the block.

    ``facts`` is what is known now: the same object until there is a newer sample, as all who look are shown the same.
    """

    _task: asyncio.Task[None]

    def __init__(
        self, admin: AsyncAdmin, now_ms: Callable[[], int] = now_ms, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.admin, self.now_ms, self._sleep = admin, now_ms, sleep
        self._history: dict[str, deque[tuple[int, float | None]]] = {name: deque(maxlen=KEPT_MS // SAMPLE_MS) for name in RATES}
        self._history["backlog"] = deque(maxlen=KEPT_MS // BACKLOG_MS)
        self._minutes: dict[str, deque[tuple[int, float | None]]] = {
            name: deque(maxlen=LONG_MS // MINUTE_MS) for name in self._history
        }
        self._lags: deque[tuple[int, dict[str, int]]] = deque(maxlen=LAGS_MAX)
        self._views: dict[str, dict[str, Any]] = {}
        self._failing_since_ms: int | None = None
        self._groups: list[str] = []
        """All groups, and those that were checked in the last round."""
        self._checked: list[str] = []
        self._largest: list[str] = []
        """Groups with the largest lag, as of the last round."""
        self._taken_to = ""
        """Up to which name groups were taken in turn."""
        self._rounds = self._backlog_due_ms = 0
        self._behind: dict[str, Backlog] = {}
        self._slow: list[Finding] = []
        self._backlog_fault = ""
        self.facts = self._found(ClusterStatus(now_ms(), "unknown", [], [], {}))

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def run(self) -> None:
        """Sample until cancelled."""
        pause_ms = SAMPLE_MS
        while True:
            begun_ms = self.now_ms()
            await self.sample()
            pause_ms = SAMPLE_MS if self._failing_since_ms is None else min(PAUSE_MAX_MS, 2 * pause_ms)
            await self._sleep(max(SAMPLE_MS // 4, min(pause_ms, begun_ms + pause_ms - self.now_ms())) / 1000)

    async def sample(self) -> None:
        """Ask every broker, and for the groups when it is time; an error is kept as the reason for a gap."""
        at_ms = self.now_ms()
        try:
            status = await self.admin.status(groups=False)
            figures = _figures(status.brokers)
        except Exception as exc:
            status, figures = ClusterStatus(at_ms, "down", [_reason(exc)], [], {}), _figures([])
        for name, figure in figures.items():
            self._keep(name, at_ms, figure, SAMPLE_MS)
        self._failing_since_ms = (self._failing_since_ms or at_ms) if status.health in NOT_SEEN else None
        if at_ms >= self._backlog_due_ms or at_ms < self._backlog_due_ms - BACKLOG_MS:
            self._backlog_due_ms = at_ms + BACKLOG_MS
            await self._sample_groups(status)
        self.facts, self._views = self._found(status), {}

    def view(self, span: str) -> dict[str, Any]:
        """Return the facts with the history of one of `RANGES`: the same object until there is a newer sample."""
        if span not in self._views:
            source, now_ms = self._history if RANGES[span] <= KEPT_MS else self._minutes, self.facts["at_ms"]
            first_ms = min((points[0][0] for points in source.values() if points), default=now_ms)
            begin_ms = min(max(first_ms, now_ms - RANGES[span]), now_ms - SPAN_MS)
            history = {name: [point for point in points if point[0] >= begin_ms] for name, points in source.items()}
            shown = {"range": span, "ranges": list(RANGES), "span_ms": (begin_ms, now_ms), "history": history}
            self._views[span] = self.facts | shown
        return self._views[span]

    @property
    def backlogs(self) -> dict[str, Backlog]:
        """Return the lag of each group that was asked for, as of the last round; empty before the first."""
        return self._behind

    def lags(self, group: str) -> list[int | None]:
        """Return the last lags of a group, every 30 seconds, up to half an hour; None: not known."""
        return [lags.get(group) for _, lags in self._lags]

    def drain_ms(self, group: str) -> int | None:
        """Return how long the group needs for its lag at the pace of the last minutes; None: not known, or it does not fall."""
        recent = [(at_ms, lags[group]) for at_ms, lags in self._lags if group in lags and at_ms >= self.now_ms() - DRAIN_MS]
        if len(recent) < 2 or (fallen := recent[0][1] - recent[-1][1]) <= 0:
            return None
        return recent[-1][1] * (recent[-1][0] - recent[0][0]) // fallen

    async def _sample_groups(self, status: ClusterStatus) -> None:
        """Ask for the health of up to `GROUPS_MAX` groups, and for what else takes many requests."""
        at_ms, total, self._behind, self._slow, failing = self.now_ms(), None, {}, [], list[str]()
        try:
            if self._failing_since_ms is None:
                if self._rounds % min(LIST_EVERY_MAX, 1 + len(self._groups) // GROUPS_MAX) == 0:
                    self._groups = [*filter(is_users_group, await self.admin.groups(failing=failing))]
                self._checked = self._next_groups()
                full, known = await self.admin.status(groups=self._checked), {finding.what for finding in status.findings}
                self._behind, self._slow = full.backlog, [each for each in full.findings if each.what not in known]
                failing += [fault for fault in full.faults if fault.startswith("not reported") or full.health in NOT_SEEN]
                late = [(behind.messages, group) for group, behind in self._behind.items() if behind.messages]
                self._largest = [group for _, group in nlargest(KEPT_MAX, late)]
                total = None if failing and not self._behind else sum(behind.messages for behind in self._behind.values())
                if self._rounds % 3 == 0:
                    self._lags.append((at_ms, {name: behind.messages for name, behind in self._behind.items()}))
                self._rounds += 1
        except Exception as exc:
            failing.append(_reason(exc))
        self._backlog_fault = "; ".join(failing[:FAILING_MAX])
        self._keep("backlog", at_ms, total, BACKLOG_MS)

    def _next_groups(self) -> list[str]:
        """Return the groups that are checked in this round: all; or, of many, those with the largest lag, and others in turn."""
        if len(self._groups) <= GROUPS_MAX:
            return self._groups
        largest = {*self._largest}.intersection(self._groups)
        others = [group for group in self._groups if group not in largest]
        start, count = bisect_right(others, self._taken_to), GROUPS_MAX - len(largest)
        taken = [*islice(others, start, start + count)]
        taken += islice(others, count - len(taken))
        self._taken_to = taken[-1]
        return sorted([*largest, *taken])

    def _keep(self, name: str, at_ms: int, value: float | None, every_ms: int) -> None:
        points = self._history[name]
        if points and at_ms - points[-1][0] > 4 * every_ms:  # this machine slept, or the answers took so long
            points.append((at_ms - 1, None))
        points.append((at_ms, value))
        minutes = self._minutes[name]
        if minutes and minutes[-1][0] // MINUTE_MS == at_ms // MINUTE_MS:
            before = minutes.pop()[1]
            value = value if before is None else before if value is None else max(before, value)
        minutes.append((at_ms, value))

    def _found(self, status: ClusterStatus) -> dict[str, Any]:
        late = [(behind.messages, group, behind.behind_ms) for group, behind in self._behind.items() if behind.messages]
        left_out = len(self._groups) - len(self._checked)
        findings = _findings(status, [*self._slow, *([_unchecked(len(self._checked), len(self._groups))] if left_out > 0 else [])])
        return {
            "at_ms": status.at_ms,
            "health": "degraded"
            if status.health == "healthy" and any(each.severity != "note" for each in self._slow)
            else status.health,
            "findings": findings[:FINDINGS_MAX],
            "findings_left_out": max(0, len(findings) - FINDINGS_MAX),
            "addresses": {broker.name: broker.address for broker in status.brokers},
            "failing_since_ms": self._failing_since_ms,
            "brokers": len(status.brokers),
            **{name: points[-1][1] if points else None for name, points in self._history.items()},
            "backlog_fault": self._backlog_fault,
            "groups": len(self._groups),
            "groups_left_out": left_out,
            "groups_behind": len(late),
            "furthest_behind": [self._late(*each) for each in nlargest(BEHIND_MAX, late)],
        }

    def _late(self, messages: int, group: str, behind_ms: int | None) -> dict[str, Any]:
        drain_ms, lags = self.drain_ms(group), self.lags(group)
        return {"group": group, "messages": messages, "behind_ms": behind_ms, "drain_ms": drain_ms, "lags": lags}


def _unchecked(checked: int, count: int) -> Finding:
    what = f"{checked:,} of {count:,} groups were checked: those with the largest lag in the last round, and others in turn."
    return Finding("unchecked", what, "See `halfmoon status`, which checks all.", "note")


def _findings(status: ClusterStatus, slow: Sequence[Finding]) -> list[Finding]:
    """Return what needs attention, the most severe first; also reasons why a part is not known."""
    known = {finding.what.removesuffix(".") for finding in status.findings}
    found = [Finding("unknown", fault, "") for fault in status.faults if fault not in known]
    order = {"blocked": 0, "warning": 1}
    return sorted([*found, *status.findings, *slow], key=lambda finding: order.get(finding.severity, 2))


def _figures(brokers: list[BrokerStatus]) -> dict[str, float | None]:
    """Return `RATES`; None where no broker says."""
    figures: dict[str, float | None] = {}
    for name in RATES:
        values = [value for broker in brokers if broker.version and (value := getattr(broker, name)) is not None]
        total = max if name in ("oldest_pending_ms", "disk_used") else sum
        figures[name] = total(values) if values else None
    return figures


def _reason(error: Exception) -> str:
    if isinstance(error, HalfmoonError):
        return text_of(error)
    log.error("console: a sample failed", exc_info=error)
    return "internal error; see the console's log"
