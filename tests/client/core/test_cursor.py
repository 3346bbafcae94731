"""A cursor comes back as it was given; any other text is refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.client.core.cursor import CURSOR_LENGTH_MAX, Offset, cursor, places
from halfmoon.errors import UsageError

PLACE, NUMBERS = tuple[Offset, Offset, Offset], st.integers(-1, 2**63 - 1)
PLACES = st.dictionaries(st.text(max_size=20), st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5)


@given(PLACES)
def test_places_come_back_as_they_were(given):
    assert places(cursor(given), PLACE) == given


@given(st.text(max_size=60))
def test_a_text_that_is_no_cursor_is_refused_and_breaks_nothing(text):
    with pytest.raises(UsageError, match="begin at its first page"):
        places(text, PLACE)


@pytest.mark.parametrize("given", [{"a": [1]}, {}, {"a": [1, 2, -2]}, {"a" * CURSOR_LENGTH_MAX: [1, 2, 3]}, {"a": [[[]]]}])
def test_places_of_another_shape_or_size_are_refused(given):
    with pytest.raises(UsageError):
        places(cursor(given), PLACE)
