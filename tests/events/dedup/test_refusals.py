"""What `dedup` cannot be: refused at once, with the remedy, and without repeating a secret."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.errors import UsageError
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.consuming.dispatch import Dispatch
from halfmoon.events.consuming.on import Handler
from halfmoon.events.dedup import ledger_of
from halfmoon.events.encoding.codec import Codecs
from tests.events.consuming.shop import shop
from tests.events.real_databases import for_asyncio


def write(event, context) -> None: ...


def dispatch(function: Any, ledger: object) -> Dispatch:
    handler = Handler(group="S_mail", topic="TP_ORDER", code="EC_PAID", function=function, dedup=ledger)
    return Dispatch("S_mail", [handler], Codecs(), {id(ledger): ledger_of(ledger)})


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

    with pytest.raises(UsageError, match=r"S_mail: TP_ORDER/EC_PAID by .*soon: dedup of a coroutine function"):
        dispatch(soon, sessionmaker(create_engine(sqlite_url)))
    with pytest.raises(UsageError, match=r"dedup of a plain function cannot be an async_sessionmaker"):
        dispatch(write, async_sessionmaker(create_async_engine(for_asyncio(sqlite_url))))


@pytest.mark.parametrize("wrong", [3, object(), lambda: None, Session])
def test_what_is_no_database_is_refused(wrong):
    with pytest.raises(UsageError, match="give a sessionmaker"):
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
