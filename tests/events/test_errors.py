"""Errors of events: their facts, and whether another try may help."""

from __future__ import annotations

import pytest

from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events import errors


def test_a_failed_publish_names_event_and_attempts_and_may_be_tried_again() -> None:
    error = errors.PublishFailed("E1", "no answer", 3)
    assert (error.event_id, error.attempts, error.in_database, error.retry) == ("E1", 3, False, True)
    assert str(error) == "event E1 not published after 3 attempt(s): no answer"


def test_a_refused_declaration_tells_place_fault_and_remedy() -> None:
    error = errors.DeclarationRefused("shop.toml:3", "no id", "write id")
    assert (error.place, error.what, error.remedy) == ("shop.toml:3", "no id", "write id")
    assert str(error) == "shop.toml:3: no id; write id"


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
)
def test_every_error_is_the_callers_mistake_or_may_be_tried_again(kind: type[HalfmoonError]) -> None:
    assert issubclass(kind, UsageError) != kind.retry
