"""Names in a store's directory, and which names found there count."""

from __future__ import annotations

import pytest

from halfmoon.errors import UsageError
from halfmoon.store.layout import file_name, file_offset, is_queue_directory, is_topic_directory, queue_directory


def test_a_file_is_named_by_its_offset_in_20_digits():
    assert file_name(1073741824) == "00000000001073741824"
    assert file_offset("00000000001073741824") == 1073741824
    assert [file_offset(name) for name in ("1073741824", "0000000000107374182x", "00000000001073741824.bak")] == [None] * 3


@pytest.mark.parametrize("topic", ["", "a/b", "..", "a b", "t" * 128, "\u00e9"])
def test_a_topic_that_cannot_be_a_directory_is_refused(topic: str):
    assert not is_topic_directory(topic)
    with pytest.raises(UsageError):
        queue_directory(topic, 0)


def test_a_queue_lies_below_its_topic():
    assert queue_directory("%RETRY%g", 3) == "consumequeue/%RETRY%g/3"
    with pytest.raises(UsageError):
        queue_directory("t", -1)
    assert [is_queue_directory(name) for name in ("0", "12", "01", "-1", "x", str(2**31))] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
