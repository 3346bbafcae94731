"""Counters and rates of a broker: messages put and got by topic and group, in windows of a minute, an hour and a day.

A counter is a running sum with samples of it: each 10 s (7 kept), each 10 min (7 kept), each hour (25 kept). The broker's own
rates of the last 10 s, minute and 10 minutes come from samples of their own.
Follows StatsItem and BrokerStatsManager (RocketMQ 4.9.8). Looks at no clock: `Stats.tick` is told the time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate
from typing import NamedTuple

from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.service import Service
from halfmoon.instant import Instant, Steady
from halfmoon.metrics import Samples

ITEMS_MAX = 40_000
"""Counters of all names together, each up to 1.2 KB; beyond the bound new ones are not counted."""

LATENCIES_MAX, READS_TIMED_MAX = 10_000, 1_000
"""Counters of how long reads of a queue for a group took; and reads of one turn that are counted there."""

_PUTS = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "BROKER_PUT_NUMS"
_GETS = "GROUP_GET_NUMS", "GROUP_GET_SIZE", "BROKER_GET_NUMS"
_WINDOWS = ((10_000, 7), (600_000, 7), (3_600_000, 25))  # minute, hour, day: sample interval in ms, samples kept


class Rate(NamedTuple):
    """The rate of one window: total, per second, and per occurrence."""

    total: int
    per_second: float
    per_time: float


class Item:
    """One counter: a sum, how often it was added to, and samples of both."""

    __slots__ = ("samples", "times", "total")

    def __init__(self) -> None:
        self.total = self.times = 0
        self.samples = (array("q"), array("q"), array("q"))  # a window's samples, each as time in ms, total, times

    def sample(self, window: int, now: int) -> None:
        """Take a sample; over the bound the oldest is dropped. The first follows an empty one, as in the original."""
        samples = self.samples[window]
        if not samples:
            samples.extend((now - _WINDOWS[window][0], 0, 0))
        samples.extend((now, self.total, self.times))
        if len(samples) > 3 * _WINDOWS[window][1]:
            del samples[:3]

    def rate(self, window: int) -> Rate:
        """Return the rate of a window (0 minute, 1 hour, 2 day): the difference of its newest and oldest sample."""
        samples = self.samples[window]
        if len(samples) < 6:
            return Rate(0, 0.0, 0.0)
        (t0, total0, times0), (t1, total1, times1) = samples[:3], samples[-3:]
        total, times = total1 - total0, times1 - times0
        return Rate(total, total * 1000 / (t1 - t0) if t1 > t0 else 0.0, total / times if times else 0.0)


_LADDER = tuple(accumulate(step for step, count in (
    (1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9)
) for _ in range(count)))  # fmt: skip
"""Upper bounds of the times that are counted together, in ms: each is below its bound."""
_DISTRIBUTION = (
    ("[<=0ms]", 1), ("[0~10ms]", 10), ("[10~50ms]", 50), ("[50~100ms]", 100), ("[100~200ms]", 200), ("[200~500ms]", 500),
    ("[500ms~1s]", 1000), ("[1~2s]", 2000), ("[2~3s]", 3000), ("[3~4s]", 4000), ("[4~5s]", 5000), ("[5~10s]", 10_000),
)  # fmt: skip
_MINUTE_MS = 60_000


class PutTimes:
    """How long puts took, from the turn that brought them until their replies left: of a minute, and the longest ever.

    Follows StoreStatsService (RocketMQ 4.9.7). Differs: the original counts from when a thread takes a put up, so without the time
    that it waited in a queue.
    """

    def __init__(self, now: Steady) -> None:
        self.open = 0
        """Puts of this turn whose replies leave with it."""
        self.max_ms = 0
        self._began_at, self._counts = now, [0] * (len(_LADDER) + 1)
        self._last: list[int] | None = None

    def took(self, ms: int, count: int = 1) -> None:
        """Count puts that took so long."""
        self._counts[bisect_right(_LADDER, ms)] += count
        if ms > self.max_ms:
            self.max_ms = ms

    def tick(self, now: Steady) -> None:
        """Begin another minute when one has passed."""
        if now - self._began_at >= _MINUTE_MS:
            self._began_at, self._last, self._counts = now, self._counts, [0] * len(self._counts)

    def distribution(self) -> str:
        """Return how many puts of the last whole minute took how long; ``null`` before there is one, as tools expect."""
        if self._last is None:
            return "null"
        parts, done = [], 0
        for name, bound in _DISTRIBUTION:
            end = bisect_left(_LADDER, bound) + 1
            parts.append(f"{name}:{sum(self._last[done:end])} ")
            done = end
        return "".join(parts) + f"[10s~]:{sum(self._last[done:])} "

    def percentile(self, share: float) -> float:
        """Return the time in ms that such a share of the last minute's puts did not exceed; 0.0 without puts."""
        counts = self._counts if self._last is None else self._last
        wanted, seen = share * sum(counts), 0
        for bound, count in zip(_LADDER, counts):
            seen += count
            if seen >= wanted:
                return float(bound - 1) if wanted else 0.0
        return float(self.max_ms)


class Flow(NamedTuple):
    """The broker's sums at a time: messages put and handed out, reads that found messages and that found none."""

    at: Steady
    puts: int
    gets: int
    found: int
    missed: int


class Stats(Service):
    """All counters of one broker, by name and key. Names are the original's: TOPIC_PUT_NUMS, GROUP_GET_SIZE and so on."""

    items_max = ITEMS_MAX
    latencies_max = LATENCIES_MAX
    reads_timed_max = READS_TIMED_MAX

    def __init__(self, cluster: str, now: Instant) -> None:
        self._cluster = cluster
        self._items: dict[tuple[str, str], Item] = {}
        self._cached: dict[str | tuple[str, str], tuple[Item, Item, Item]] = {}
        """The three counters of `moved`, by topic, or topic and group; at most as many as there are counters."""
        self._next_at = [now.steady + interval for interval, _ in _WINDOWS]
        self._due = min(self._next_at)
        self._broker_samples: deque[Flow] = deque([Flow(now.steady, 0, 0, 0, 0)], maxlen=62)
        self.booted, self.booted_ms = now.steady, now.date
        self.puts_failed = self.reads_found = self.reads_missed = 0
        self._reads_timed = self.read_max_ms = 0
        self._reads: list[tuple[int, str, str]] = []
        """Queue, topic and group of this turn's reads that found messages."""
        self._latencies: dict[tuple[int, str, str], Item] = {}
        self.put_times = PutTimes(now.steady)
        self.day_marks: deque[tuple[int, int, int]] = deque(maxlen=2)
        """(start of the day in ms UTC, puts until then, gets until then): yesterday's and today's morning."""
        self._mark_day(now.date)

    def moved(self, topic: str, group: str | None, count: int, size_bytes: int) -> None:
        """Count messages that were stored (``group`` None), or handed to a consumer group."""
        items = self._cached.get(topic if group is None else (topic, group))
        if items is None:
            self._first(topic, group, (count, size_bytes, count))
            return
        nums, size, all_nums = items
        nums.total += count
        size.total += size_bytes
        all_nums.total += count
        nums.times += 1
        size.times += 1
        all_nums.times += 1

    def read(self, queue_id: int, topic: str, group: str) -> None:
        """Messages of a queue are read for a group in this turn; `turned` will say how long it took."""
        if len(self._reads) < self.reads_timed_max:
            self._reads.append((queue_id, topic, group))

    def _first(self, topic: str, group: str | None, amounts: tuple[int, int, int]) -> None:
        """Count by name, and cache the counters if there was room for them."""
        names, key = (_PUTS, topic) if group is None else (_GETS, f"{topic}@{group}")
        items = []
        for name, of, amount in zip(names, (key, key, self._cluster), amounts):
            self.add(name, of, amount)
            items.append(self.item(name, of))
        nums, size, all_nums = items
        if nums is not None and size is not None and all_nums is not None:
            self._cached[topic if group is None else (topic, group)] = (nums, size, all_nums)

    def add(self, name: str, key: str, amount: int) -> None:
        """Add to a counter, made on its first use."""
        item = self._items.get((name, key))
        if item is None:
            if len(self._items) >= self.items_max:
                return
            item = self._items[name, key] = Item()
        item.total += amount
        item.times += 1

    def item(self, name: str, key: str) -> Item | None:
        """Return a counter, or None when nothing was counted under the name and key."""
        return self._items.get((name, key))

    def total(self, name: str, key: str | None = None) -> int:
        """Return a counter's sum; without a key the broker's own."""
        item = self._items.get((name, self._cluster if key is None else key))
        return 0 if item is None else item.total

    def per_second(self, name: str, key: str | None = None) -> tuple[float, float, float]:
        """Return the rates of the last minute, hour and day."""
        item = self._items.get((name, self._cluster if key is None else key))
        return (0.0, 0.0, 0.0) if item is None else (item.rate(0).per_second, item.rate(1).per_second, item.rate(2).per_second)

    def incoming(self, topic: str) -> float | None:
        """Return the messages of a topic stored a second, mean of the last minute; None: there are too many topics to count it."""
        if self.item("TOPIC_PUT_NUMS", topic) is None and len(self._items) >= self.items_max:
            return None
        return self.per_second("TOPIC_PUT_NUMS", topic)[0]

    def topic_deleted(self, topic: str) -> None:
        """Forget the counters of a topic that was deleted."""
        self._forget(topic=topic)

    def group_deleted(self, group: str) -> None:
        """Forget the counters of a group that was deleted."""
        self._forget(group=group)

    def _forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        self._cached.clear()
        self._latencies = {read: item for read, item in self._latencies.items() if read[1] != topic and read[2] != group}
        for name, key in list(self._items):
            parts = key.split("@")
            if (topic is not None and topic in parts) or (group is not None and len(parts) > 1 and parts[-1] == group):
                del self._items[name, key]

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield how many messages were stored and handed out, and the results of pulls."""
        yield metrics.STORED, broker, self.total("BROKER_PUT_NUMS")
        yield metrics.DELIVERED, broker, self.total("BROKER_GET_NUMS")
        yield metrics.PUTS_FAILED, broker, self.puts_failed
        yield metrics.PULLS, (*broker, "found"), self.reads_found
        yield metrics.PULLS, (*broker, "missed"), self.reads_missed

    def due(self, now: Instant) -> Steady:
        """When the next samples are to be taken."""
        return self._due

    def tick(self, now: Instant) -> None:
        """Take the samples that are due."""
        self._mark_day(now.date)
        at = now.steady
        if at < self._due:
            return
        for window, (interval, _) in enumerate(_WINDOWS):
            if at >= self._next_at[window]:
                self._next_at[window] = at + interval
                for item in self._items.values():
                    item.sample(window, int(at))
                if window == 0:
                    self._broker_samples.append(self._flow(at))
        self.put_times.tick(at)
        self._due = min(self._next_at)

    def turned(self, took_ms: int) -> None:
        """Note the duration of a turn, replies included, as that of its puts and reads."""
        times = self.put_times
        if times.open:
            times.took(took_ms, times.open)
            times.open = 0
        if self._reads_timed != (reads := self.reads_found + self.reads_missed):
            self._reads_timed = reads
            self.read_max_ms = max(self.read_max_ms, took_ms)
        if self._reads:
            if took_ms or self._latencies:
                self._count_latencies(took_ms)
            self._reads.clear()

    def _count_latencies(self, took_ms: int) -> None:
        """Count the reads of a turn, of each queue from the first on that took a millisecond: there are too many queues."""
        for read in self._reads:
            item = self._latencies.get(read)
            if item is None and took_ms and len(self._latencies) < self.latencies_max and len(self._items) < self.items_max:
                item = self._items.setdefault(("GROUP_GET_LATENCY", "@".join(map(str, read))), Item())
                self._latencies[read] = item
            if item is not None:
                item.total += took_ms
                item.times += 1

    def _flow(self, now: Steady) -> Flow:
        return Flow(now, self.total("BROKER_PUT_NUMS"), self.total("BROKER_GET_NUMS"), self.reads_found, self.reads_missed)

    def running_ms(self, now: Steady) -> int:
        """Return how long the broker has been running."""
        return now - self.booted

    def recent(self, now: Steady) -> tuple[list[float], ...]:
        """Return messages put and handed out, reads that found some and that found none, all per second.

        Each is a list: over about the last 10 s, minute and 10 minutes, or since the start.
        """
        flow = self._flow(now)
        windows = []
        for back_ms in (10_000, 60_000, 600_000):
            then = next((s for s in reversed(self._broker_samples) if flow.at - s.at >= back_ms), self._broker_samples[0])
            seconds = max(flow.at - then.at, 1000) / 1000
            windows.append([(after - before) / seconds for after, before in zip(flow[1:], then[1:])])
        return tuple(list(rates) for rates in zip(*windows))

    def _mark_day(self, now: int) -> None:
        day_ms = now - now % 86_400_000
        if not self.day_marks or self.day_marks[-1][0] != day_ms:
            self.day_marks.append((day_ms, self.total("BROKER_PUT_NUMS"), self.total("BROKER_GET_NUMS")))
