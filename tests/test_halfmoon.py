"""What `import halfmoon` gives: each public name when it is first asked for, and no other."""

from __future__ import annotations

import logging

import pytest

import halfmoon
from halfmoon import logs


@pytest.mark.parametrize("name", halfmoon.__all__)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(halfmoon, name).__doc__
    assert name in dir(halfmoon)


def test_what_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'halfmoon' has no attribute 'Consumer'"):
        _ = halfmoon.Consumer  # type: ignore[attr-defined]


def test_the_version_is_a_release() -> None:
    assert all(part.isdigit() for part in halfmoon.__version__.split("."))


def test_what_it_logs_is_escaped_from_the_import_on() -> None:
    assert all(logs.escape in logging.getLogger(name).filters for name in logs.NAMES)
