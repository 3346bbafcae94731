"""What a consumer's function may say of an event: that it is to come again, and why."""

from __future__ import annotations

import pytest

from halfmoon.events.consuming.context import REASON_LENGTH_MAX, ConsumerContext
from halfmoon.events.event import Event


@pytest.fixture
def context() -> ConsumerContext:
    return ConsumerContext(Event(id="E1", topic="TP_ORDER", code="EC_PAID"), None, "S_mail", 2)  # type: ignore[arg-type]


def test_a_reason_is_a_bounded_text(context: ConsumerContext) -> None:
    context.set_context_desc(ValueError("x" * 5_000))  # type: ignore[arg-type]
    assert context.reason == "x" * REASON_LENGTH_MAX


def test_it_names_event_group_and_attempt_in_logs(context: ConsumerContext) -> None:
    assert repr(context) == "ConsumerContext(event E1 (TP_ORDER/EC_PAID), group='S_mail', attempt=2)"
