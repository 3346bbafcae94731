"""Whole clusters under random faults: every promise holds, for seeds that once failed and for many others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.history import simulate
from simulation.messages import Messages

SEEDS = range(1, 21)
KEPT_FILE = Path(__file__).parent / "seeds.txt"
KEPT = [line.split() for line in KEPT_FILE.read_text().splitlines() if line.strip() and line[0] != "#"]
ROOT = Path(__file__).parents[2]


@pytest.mark.mission("004-15")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds(seed: int) -> None:
    assert simulate(Messages, seed).problems == []


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(1, 8))
def test_every_promise_holds_on_disks_that_become_full(seed: int, flush: str) -> None:
    assert simulate(Messages, seed, flush=flush, kinds=("full_disk", "kill")).problems == []


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_promise_holds_without_descriptors(seed: int, flush: str) -> None:
    assert simulate(Messages, seed, flush=flush, kinds=("descriptors", "kill", "power")).problems == []


@pytest.mark.parametrize(("seed", "flush", "kinds"), KEPT)
def test_a_history_that_once_broke_a_promise_holds(seed: str, flush: str, kinds: str) -> None:
    verdict = simulate(
        Messages, int(seed), flush=None if flush == "-" else flush, kinds=None if kinds == "-" else tuple(kinds.split(","))
    )
    assert verdict.problems == [], verdict.summary()


def test_histories_are_worth_judging() -> None:
    verdicts = [simulate(Messages, seed) for seed in range(1, 6)]
    assert sum(verdict["acknowledged"] for verdict in verdicts) > 500
    assert sum(verdict["read"] for verdict in verdicts) > 300
    assert sum(verdict["commits"] for verdict in verdicts) > 30


def test_a_seed_is_one_history_in_every_process() -> None:
    def printed(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "simulation", "--seed", "7", "--kinds", "kill,lose,cut"]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120).stdout

    first, second = printed("1"), printed("2")
    assert "seed 7, messages:" in first
    assert first == second
