"""Clients of this process for the options of sources and sinks. Their settings are checked once, however many requests use them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from halfmoon.client.ranges import Ranges, ranges
from halfmoon.spark.source.options import SourceOptions

T = TypeVar("T")

CLIENTS_MAX = 256
"""Combinations of settings that are remembered as checked."""


def client_of(options: SourceOptions, **changes: Any) -> Ranges:
    """Return this process's client that reads for these options, with some settings changed."""
    return of_process(ranges, **{**options.client, "half_messages": options.half_messages, **changes})


def of_process(make: Callable[..., T], **settings: Any) -> T:
    """Return what ``make`` gave for these settings at its first call in this process; a forked child calls it again."""
    made: T = _made(make, os.getpid(), tuple(settings.items()))
    return made


@lru_cache(maxsize=CLIENTS_MAX)
def _made(make: Callable[..., Any], pid: int, settings: tuple[tuple[str, Any], ...]) -> Any:
    return make(**dict(settings))
