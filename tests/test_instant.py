"""Two times of two types: what mypy lets pass, and a page of mix-ups that it does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from halfmoon.instant import LONG_AGO, Steady, instant

PAGE = """
from heapq import heappush
from halfmoon.instant import LONG_AGO, Date, Instant, Steady

def right(now: Instant, deadline: Steady, stored_ms: int, dues: list[tuple[Steady, int]]) -> int:
    later = max(deadline, now.steady + 5_000)
    heappush(dues, (later, 1))
    if now.steady >= later or min(deadline, later) < LONG_AGO:
        return now.steady - deadline
    wanted: Steady = now.at(stored_ms) - 10
    return now.date - stored_ms + (wanted - now.steady) + now.date_at(wanted)

def wrong(now: Instant, deadline: Steady, stored_ms: int, dues: list[tuple[Steady, int]]) -> None:
    now.date >= deadline  # wrong
    deadline <= now.date  # wrong
    now.steady > stored_ms  # wrong
    stored_ms < now.steady  # wrong
    now.steady - now.date + 1  # wrong
    now.date - now.steady  # wrong
    first: Steady = now.date  # wrong
    second: Date = now.steady  # wrong
    third: int = deadline  # wrong
    fourth: Steady = stored_ms + 5_000  # wrong
    fifth: Steady = now.steady + now.date  # wrong
    sixth: Steady = deadline - now.date  # wrong
    seventh: Steady = 0  # wrong
    deadline + deadline  # wrong
    max(deadline, now.date) - deadline  # wrong
    dues.append((now.date, 1))  # wrong
    now + 5  # wrong
    now >= deadline  # wrong
    Instant(now.date, now.date)  # wrong
    Instant(now.steady, now.steady)  # wrong
    now.at(deadline)  # wrong
    now.date_at(stored_ms)  # wrong
"""


@pytest.mark.slow
def test_each_mix_up_of_a_page_is_an_error_for_the_type_checker_and_nothing_else_is(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(PAGE)
    root = Path(__file__).parent.parent
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(page)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {int(number) for number in re.findall(r"page\.py:(\d+): error", checked.stdout)}
    wrong = {number for number, line in enumerate(PAGE.splitlines(), 1) if line.endswith("# wrong")}

    assert len(wrong) > 20
    assert found == wrong, checked.stdout


def test_a_date_and_a_steady_time_are_turned_into_each_other_as_the_clock_stands() -> None:
    now = instant(1_700_000_000_000, 5_000)

    assert now.at(1_700_000_000_250) == Steady(5_250)
    assert now.date_at(Steady(4_000)) == 1_699_999_999_000
    assert Steady(0) > LONG_AGO
