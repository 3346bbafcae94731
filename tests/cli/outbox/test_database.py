"""Opening the database of an outbox: what fails is one line, and an address is shown without its password."""

from __future__ import annotations

import pytest

from halfmoon.cli.outbox.database import DatabaseFailed, opened
from halfmoon.errors import UsageError


@pytest.mark.parametrize("url", ["nonsense", "no_such_driver://user:hunter2@host/db"])
def test_an_address_that_is_none_is_refused_without_the_password(url: str):
    with pytest.raises(UsageError, match="the database's address") as refused, opened(url):
        pass
    assert "hunter2" not in str(refused.value)


def test_what_fails_in_the_block_is_one_line_that_names_the_database():
    with pytest.raises(DatabaseFailed, match=r"^sqlite://: RuntimeError: no outbox$"), opened("sqlite://"):
        raise RuntimeError("no outbox\nand more")


def test_a_command_s_own_error_stays_as_it_is():
    with pytest.raises(UsageError, match="no such event"), opened("sqlite://"):
        raise UsageError("no such event")
