"""What `dedup` cannot be: refused at once, with the remedy, and without repeating a secret."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.errors import UsageError
from halfmoon.events import aio
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.consuming.on import Handler
from halfmoon.events.dedup import ledger_of
from tests.events.consuming.shop import shop
from tests.events.dedup.mails import async_maker, dispatch


def write(event, context) -> None: ...


def test_a_missing_table_is_told_with_the_remedy_before_anything_is_consumed(sqlite_url, tmp_path):
    bare = create_engine(sqlite_url)
    declared = Handler(group="S_mail", topic="TP_ORDER", code="EC_PAID", function=write, dedup=sessionmaker(bare))
    with shop(tmp_path / "store") as running:
        consumers = Consumers(declared, nameserver=running.nameserver)
        with pytest.raises(UsageError, match=r"halfmoon_consumed.*create_tables"):
            consumers.start()
        again = Consumers(declared, nameserver=running.nameserver)
        again.create_tables()
        with again:
            assert again.running
    bare.dispose()


def test_a_function_and_its_transaction_are_of_one_kind(sqlite_url):
    async def soon(event, context): ...

    with pytest.raises(
        UsageError, match=r"S_mail: TP_ORDER/EC_PAID by .*soon: dedup of a coroutine function must be an async_session"
    ):
        dispatch(soon, sessionmaker(create_engine(sqlite_url)))
    with pytest.raises(UsageError, match=r"dedup of a plain function cannot be an async_sessionmaker"):
        dispatch(write, async_maker(sqlite_url))
    with pytest.raises(UsageError, match=r"dedup of a plain function cannot be .*event loop"):
        dispatch(write, aio.provider(lambda: None))


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [(3, "a sessionmaker"), (object(), "a sessionmaker"), (Session, "a sessionmaker"), (lambda: None, "by a provider: ")],
)
def test_what_is_no_database_is_refused(wrong, wanted):
    with pytest.raises(UsageError, match=wanted):
        ledger_of(wrong)


def test_an_address_is_refused_without_being_repeated():
    with pytest.raises(UsageError) as refused:
        ledger_of("postgresql://shop:secret@127.0.0.1/shop")

    assert "secret" not in str(refused.value)


@pytest.mark.slow
def test_consumers_load_no_database_library_by_themselves():
    heavy = {"sqlalchemy", "django"}
    code = f"import sys; from halfmoon.events.consuming import consumers, running; print(sorted({heavy} & set(sys.modules)))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"
