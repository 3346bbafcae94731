"""Tests of `tools.mission`: what counts as proved."""

from __future__ import annotations

import pytest

from tools import mission


def test_the_list_has_its_240_lines():
    assert len(mission.lines(mission.PAGE.read_text())) == 240


def test_a_number_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        mission.lines("- 000-01 [a] one\n- 000-01 [a] two\n")


def test_a_line_is_proved_by_a_passing_test_and_unproved_by_a_failing_one():
    results = {
        "a": {"lines": ["000-01", "000-02"], "outcome": "passed"},
        "b": {"lines": ["000-02"], "outcome": "failed"},
        "c": {"lines": ["000-03"], "outcome": "skipped"},
    }

    found = mission.states(["000-01", "000-02", "000-03", "000-04"], results)

    assert found == {"000-01": "proved", "000-02": "failing", "000-03": "skipped", "000-04": "open"}


def test_a_test_whose_end_fails_did_not_pass():
    recorder = mission.Recorder(["000-01"])
    recorder.collected("t.py::a", ["000-01"])

    for outcome in ("passed", "passed", "failed"):
        recorder.ended("t.py::a", ["000-01"], outcome)

    assert recorder.merged({})["t.py::a"]["outcome"] == "failed"


def test_a_test_that_is_tried_once_more_has_the_outcome_of_its_second_try():
    recorder = mission.Recorder(["000-01"])
    recorder.collected("t.py::a", ["000-01"])

    recorder.ended("t.py::a", ["000-01"], "failed")
    recorder.again("t.py::a")
    recorder.ended("t.py::a", ["000-01"], "passed")

    assert recorder.merged({})["t.py::a"]["outcome"] == "passed"


def test_a_renamed_test_proves_nothing_any_more_and_other_files_keep_their_results():
    recorder = mission.Recorder(["000-01"])
    recorder.collected("t.py::new", [])
    earlier = {"t.py::old": {"lines": ["000-01"], "outcome": "passed"}, "u.py::a": {"lines": [], "outcome": "passed"}}

    assert list(recorder.merged(earlier)) == ["u.py::a"]


@pytest.mark.parametrize(
    ("arguments", "last_failed", "single"),
    [(["tests"], False, False), (["tests/a.py::b"], False, True), (["tests"], True, True), ([], False, False)],
)
def test_a_run_of_single_tests_is_known_as_one(arguments, last_failed, single):
    assert mission.is_of_single_tests(arguments, last_failed) is single


def test_a_mark_with_an_unknown_number_is_refused():
    with pytest.raises(ValueError, match="999-99"):
        mission.Recorder(["000-01"]).collected("t.py::a", ["999-99"])
