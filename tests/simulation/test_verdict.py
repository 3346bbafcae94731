"""Verdicts: what is printed of a history, and what becomes a problem of it."""

from __future__ import annotations

import logging

from simulation.verdict import PROBLEMS_MAX, Verdict, by_checker, errors_logged


def test_a_summary_counts_what_happened_and_what_is_wrong() -> None:
    verdict = Verdict("messages", 7, "sync", ["cut", "kill"], counts={"acknowledged": 3, "read": 2, "commits": 1})
    assert verdict.summary() == "seed 7, messages: held; sync flush, 3 acknowledged, 2 read, 1 commits, 0.0 s, 0 events; cut, kill"
    verdict.problems.append("lost: one")
    assert "1 PROBLEMS" in verdict.summary()


def test_each_checker_reports_its_first_problems_under_its_name() -> None:
    problems = by_checker({"lost": [str(number) for number in range(PROBLEMS_MAX + 5)], "order": []})
    assert problems[0] == "lost: 0"
    assert len(problems) == PROBLEMS_MAX


def test_errors_of_servers_are_problems_but_those_that_report_what_a_disk_did() -> None:
    lines: list[str] = []
    problems: list[str] = []
    with errors_logged(lines.append, problems.append):
        logging.getLogger("halfmoon.store").error("the log ends in the middle")
        logging.getLogger("halfmoon.store.damaged").error("checkers judge what a disk did")
    logging.getLogger("halfmoon.store").error("the history is over")
    assert lines == ["the log ends in the middle", "checkers judge what a disk did"]
    assert problems == ["logged: the log ends in the middle"]
