"""Bounds that only make sense together."""

from __future__ import annotations

from halfmoon import limits


def test_a_frame_has_room_for_the_largest_body_and_the_largest_header() -> None:
    assert limits.BODY_BYTES_MAX + limits.HEADER_BYTES_MAX < limits.FRAME_BYTES_MAX


def test_a_header_has_room_for_all_properties_though_json_escapes_every_byte() -> None:
    assert limits.PROPERTIES_BYTES_MAX * 6 + limits.TOPIC_LENGTH_MAX < limits.HEADER_BYTES_MAX


def test_unfinished_frames_have_room_for_one_of_the_largest() -> None:
    assert limits.FRAME_BYTES_MAX < limits.PARTIAL_BYTES_MAX


def test_lengths_fit_the_fields_of_a_record() -> None:
    assert limits.TOPIC_LENGTH_MAX == 2**7 - 1
    assert limits.PROPERTIES_BYTES_MAX == 2**15 - 1
