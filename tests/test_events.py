"""What `import halfmoon.events` gives: each public name when it is first asked for, and no other."""

from __future__ import annotations

import pytest

from halfmoon import events


@pytest.mark.parametrize("name", events.__all__)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(events, name).__doc__
    assert name in dir(events)


def test_what_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match=r"module 'halfmoon\.events' has no attribute 'Nothing'"):
        _ = events.Nothing
