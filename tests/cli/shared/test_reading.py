"""A topic that a command is to read and that does not exist is named with those spelt alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from halfmoon.cli.shared.reading import TopicMissing, near_names
from halfmoon.errors import TopicNotFound


@pytest.mark.parametrize(
    ("topics", "text"),
    [(["orders", "order_reminder", "x"], "there is no topic ordres; did you mean 'orders'?"), (["x"], "there is no topic ordres")],
)
def test_a_missing_topic_is_named_with_those_spelt_alike(topics: list[str], text: str):
    admin: Any = SimpleNamespace(topics=lambda: topics)

    with pytest.raises(TopicMissing) as missing, near_names(admin, "ordres"):
        raise TopicNotFound("ordres")

    assert str(missing.value) == text
    assert missing.value.topic == "ordres"
