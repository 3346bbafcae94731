"""Pages of lists of several brokers: together they have every row once, in order, whatever each broker lists at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.client.core.admin.pages import END, Listed, Place, count_of, merged, places_of
from halfmoon.errors import UsageError


def listed(rows: list[int], start: Place, count: int, whole: bool) -> Listed[int]:
    """List rows of a broker from a place on, as many as there is room for; or some of them, and that others follow."""
    at = max(start[0], 0)
    some = rows[at : at + (count if whole else max(1, count // 2))]
    behind = at + len(some)
    return Listed([((at + n + 1, ""), row) for n, row in enumerate(some)], (behind, "") if behind < len(rows) else END)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(st.integers(0, 50)).map(sorted), max_size=3),
    st.integers(1, 7), st.booleans(),
)  # fmt: skip
def test_all_pages_together_are_the_whole_list_in_order(brokers: dict[str, list[int]], count: int, whole: bool):
    found: list[int] = []
    cursor: str | None = None
    for _ in range(1000):
        places = places_of(cursor)
        left = {name: rows for name, rows in brokers.items() if places.get(name) != END}
        pages = {name: listed(rows, places.get(name, (0, "")), count, whole) for name, rows in left.items()}
        taken, cursor = merged(pages, count, lambda row: row, places)
        assert len(taken) <= count
        found += taken
        if cursor is None:
            break

    assert found == sorted(row for rows in brokers.values() for row in rows)


@pytest.mark.parametrize("text", ["", "x", "W10", "\u00e9", "A" * 5000])
def test_a_damaged_cursor_is_refused_in_words(text: str):
    with pytest.raises(UsageError, match="begin at its first page"):
        places_of(text)


def test_a_page_has_a_row_and_a_thousand_at_most():
    assert [count_of(count) for count in (-1, 0, 1, 100, 10**9)] == [1, 1, 1, 100, 1000]
