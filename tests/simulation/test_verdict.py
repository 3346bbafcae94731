"""Verdicts: what is printed of a history, and what becomes a problem of it."""

from __future__ import annotations

import logging

from simulation.ledger import Ledger
from simulation.messages.history import MessagesVerdict
from simulation.verdict import PROBLEMS_MAX, by_checker, judging


def test_a_summary_counts_what_happened_and_what_is_wrong() -> None:
    verdict = MessagesVerdict(7, "sync", ["cut", "kill"], acknowledged=3, read=2, committed=1)
    assert verdict.summary() == "seed 7, messages: held; sync flush, 3 acknowledged, 2 read, 1 commits, 0.0 s, 0 events; cut, kill"
    verdict.problems.append("lost: one")
    assert "1 PROBLEMS" in verdict.summary()


def test_each_checker_reports_its_first_problems_under_its_name() -> None:
    problems = by_checker({"lost": [str(number) for number in range(PROBLEMS_MAX + 5)], "order": []})
    assert problems[0] == "lost: 0"
    assert len(problems) == PROBLEMS_MAX


def test_what_a_history_raises_or_logs_as_an_error_is_a_problem() -> None:
    verdict, ledger = MessagesVerdict(1, "sync"), Ledger("sync")
    with judging(verdict, ledger):
        logging.getLogger("halfmoon.store").error("the log ends in the middle")
        logging.getLogger("halfmoon.store.damaged").error("what a disk did is judged by checkers")
        raise ValueError("a core failed")
    assert verdict.problems == ["logged: the log ends in the middle", "raised: ValueError: a core failed"]
