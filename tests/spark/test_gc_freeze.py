"""Tests of what Spark's workers leave out of their collections of garbage."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from halfmoon.errors import HalfmoonError
from halfmoon.spark import gc_freeze
from halfmoon.spark.sink import exactly_once, sink
from halfmoon.spark.sink.options import sink_options
from halfmoon.spark.source import reading

NOWHERE = {"endpoints": "127.0.0.1:1", "topic": "T", "retries": "0"}


def test_outside_of_a_worker_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gc_freeze, "_calls", count())
    before = gc.get_freeze_count()

    for _ in range(3):
        gc_freeze.freeze_imports()

    assert not gc_freeze.in_worker()
    assert gc.get_freeze_count() == before


@pytest.mark.parametrize("daemon", gc_freeze.DAEMONS)
def test_a_worker_does_it_once_at_its_second_task(daemon: str, monkeypatch: pytest.MonkeyPatch):
    done: list[str] = []
    monkeypatch.setattr(gc_freeze, "_calls", count())
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name=daemon)))
    collector = SimpleNamespace(collect=lambda: done.append("collect"), freeze=lambda: done.append("freeze"))
    monkeypatch.setattr(gc_freeze, "gc", collector)

    gc_freeze.freeze_imports()
    assert done == []
    gc_freeze.freeze_imports()
    assert done == ["collect", "freeze"]
    gc_freeze.freeze_imports()
    assert done == ["collect", "freeze"]


@pytest.mark.parametrize("task", ["read", "plan", "write", "exactly", "report"])
def test_every_task_of_ours_says_so(task: str, monkeypatch: pytest.MonkeyPatch):
    calls: list[None] = []
    for module in (reading, sink, exactly_once):
        monkeypatch.setattr(module, "freeze_imports", lambda: calls.append(None))
    options = sink_options(NOWHERE)
    doing: dict[str, Any] = {
        "read": lambda: next(reading.rows(SimpleNamespace(emit="ranges"), None, ()), None),  # type: ignore[arg-type]
        "plan": lambda: sink.batch_writer(NOWHERE, None, overwrite=True),  # type: ignore[arg-type]
        "write": lambda: sink.write(options, sink.SinkTask("Q", 0, 0), iter(())),
        "exactly": lambda: exactly_once.prepare(None, options, None, 0, ()),  # type: ignore[arg-type]
        "report": lambda: sink.report(options, []),
    }

    with suppress(HalfmoonError, AttributeError, TypeError):  # all of them end soon after
        doing[task]()

    assert calls == [None]


@pytest.mark.slow
def test_spark_s_own_workers_are_recognised(spark: Any):
    def found(_: int) -> int:
        import gc

        from halfmoon.spark.gc_freeze import freeze_imports

        for _ in range(2):
            freeze_imports()
        return gc.get_freeze_count()

    assert min(spark.sparkContext.parallelize([0, 1], 2).map(found).collect()) > 10_000
