"""Samples as text, in Prometheus' format (0.0.4) and in OpenMetrics 1.0.

prometheus-client writes the heads of metrics and the samples of the process; other samples are written here, because it takes ten
times as long for the thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace

from prometheus_client import ProcessCollector
from prometheus_client import exposition as plain
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics

from halfmoon.metrics import Metric, Sample, TurnTimes

PLAIN, OPENMETRICS = "text/plain; version=0.0.4; charset=utf-8", openmetrics.CONTENT_TYPE_LATEST
_ENCODERS: dict[str, Callable[..., bytes]] = {PLAIN: plain.generate_latest, OPENMETRICS: openmetrics.generate_latest}
_EOF = b"# EOF\n"

LABEL_LENGTH_MAX = 255
"""Longest value of a label, as long as the longest name of a topic or group; only producers' groups may be longer."""

_LINES_AT_ONCE = 512
"""Lines that become one text while they are gathered, so that none of many holds the event loop."""

_PROCESS = ProcessCollector(registry=None)


def of_process() -> list[Family]:
    """Return memory, processor time and open files of this process. For a thread: with 10,000 files it takes 9 ms."""
    return list(_PROCESS.collect())


class MetricsPage:
    """Samples of one round, by metric. Those beyond ``series_max`` are counted in ``left_out``; those of the process come first."""

    def __init__(self, series_max: int, of_process: Sequence[Family] = ()) -> None:
        self._series_max, self._of_process = series_max, of_process
        self._families: dict[str, tuple[Metric, list[bytes], list[str]]] = {}
        """By name: the declaration, what is text already, and lines that are not yet."""
        self._names: tuple[str, ...] = ()
        self._values: tuple[str, ...] = ()
        self._labels = ""
        self.series = self.left_out = 0

    def add(self, sample: Sample) -> None:
        """Add a sample, if there is room for another series."""
        if self.series < self._series_max:
            self._add(sample)
        else:
            self.left_out += 1

    def close(self, samples: Iterable[Sample]) -> None:
        """Add the last samples, which say what the page is like and always have room."""
        for sample in samples:
            self._add(sample)

    def _add(self, sample: Sample) -> None:
        metric, values, value = sample
        if values is not self._values or metric.labels is not self._names:  # a row has one text of its labels
            self._names, self._values, self._labels = metric.labels, values, labels_text(metric.labels, values)
        family = self._families.get(metric.name)
        if family is None:
            family = self._families[metric.name] = (metric, [], [])
        _, texts, lines = family
        if isinstance(value, TurnTimes):
            lines += (histogram := _histogram(metric.name, self._labels, value))
            self.series += len(histogram)
        else:
            lines.append(f"{metric.name}{'{'}{self._labels}{'}'} {value!r}\n" if values else f"{metric.name} {value!r}\n")
            self.series += 1
        if len(lines) >= _LINES_AT_ONCE:
            texts.append(_encoded(lines))
            lines.clear()

    def pieces(self, content_type: str) -> Iterable[bytes]:
        """Yield the text piece by piece."""
        encode = _ENCODERS[content_type]
        yield encode(SimpleNamespace(collect=self._of_process.__iter__)).removesuffix(_EOF)
        for metric, texts, lines in self._families.values():
            name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            family = Family(name, metric.text, metric.kind)
            yield encode(SimpleNamespace(collect=[family].__iter__)).removesuffix(_EOF)
            yield from texts
            yield _encoded(lines)
        if content_type == OPENMETRICS:
            yield _EOF


def labels_text(names: Iterable[str], values: Iterable[str]) -> str:
    """Return labels as they stand between braces."""
    return ",".join([f'{name}="{_escaped(value[:LABEL_LENGTH_MAX])}"' for name, value in zip(names, values)])


def _encoded(lines: list[str]) -> bytes:
    return "".join(lines).encode("utf-8", "replace")  # a name from outside may be no text


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _histogram(name: str, labels: str, times: TurnTimes) -> list[str]:
    comma, count = "," if labels else "", sum(times.counts)
    lines = [f'{name}_bucket{{{labels}{comma}le="{bound!r}"}} {below}\n' for bound, below in times.buckets()]
    return [
        *lines, f'{name}_bucket{{{labels}{comma}le="+Inf"}} {count}\n', f"{name}_count{{{labels}}} {count}\n",
        f"{name}_sum{{{labels}}} {times.total / times.PER_SECOND!r}\n",
    ]  # fmt: skip
