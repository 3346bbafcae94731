"""Names, codes, ids and numbers that an event or its publisher may have, and what is refused."""

from __future__ import annotations

import pytest

from halfmoon.errors import UsageError
from halfmoon.events.errors import NameRefused
from halfmoon.events.event import NAME_LENGTH_MAX, Event, check_code, check_id, check_name, check_whole


@pytest.mark.parametrize("name", ["TP_ORDER", "%RETRY%S_mail", "a|b-c", "x" * NAME_LENGTH_MAX])
def test_a_name_that_brokers_take_is_returned(name: str) -> None:
    assert check_name("topic", name) == name


@pytest.mark.parametrize("name", ["", "two words", "x" * (NAME_LENGTH_MAX + 1), "TBW102", "rmq_sys_wheel_timer", None, 7])
def test_other_topics_are_refused(name: object) -> None:
    with pytest.raises(NameRefused, match="topic"):
        check_name("topic", name)


def test_what_belongs_to_brokers_is_refused_as_a_topic_only() -> None:
    assert check_name("group", "TBW102") == "TBW102"


@pytest.mark.parametrize("code", ["a||b", "a b", "", "*", b"EC_PAID"])
def test_a_code_that_is_no_tag_is_refused(code: object) -> None:
    assert check_code("EC_PAID.v1:x") == "EC_PAID.v1:x"
    with pytest.raises(NameRefused, match="event code"):
        check_code(code)


@pytest.mark.parametrize("event_id", ["", "x" * 65, "a b", "ä", None, "halfmoon-database"])
def test_an_id_is_a_short_text_of_letters_digits_and_four_signs(event_id: object) -> None:
    assert check_id("x" * 64) == "x" * 64
    with pytest.raises(NameRefused, match="event id"):
        check_id(event_id)


@pytest.mark.parametrize("value", [0, 11, True, 1.0, "1", None])
def test_a_number_is_an_int_between_its_bounds(value: object) -> None:
    assert (check_whole("n", 1, 1, 10), check_whole("n", 10, 1, 10)) == (1, 10)
    with pytest.raises(UsageError, match="n must be a whole number from 1 to 10"):
        check_whole("n", value, 1, 10)


def test_an_event_names_itself_and_failed_attempts_do_not_tell_events_apart() -> None:
    event, again = (Event(id="E1", topic="TP_ORDER", code="EC_PAID", attempts=attempts) for attempts in (0, 3))
    assert str(event) == "event E1 (TP_ORDER/EC_PAID)"
    assert event.type == ("TP_ORDER", "EC_PAID")
    assert event == again
