"""The blocking side of SQLAlchemy in a process without greenlet: publishing, checks, the outbox, consumers, the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT = 'import sys\nsys.modules["greenlet"] = None  # importing it fails from now on\n'

WHOLE = """
import asyncio, sqlite3, threading
from sqlalchemy import create_engine, text
from sqlalchemy.orm import scoped_session, sessionmaker
from halfmoon.events import Consumers, Publisher
from halfmoon.events.consuming.on import Handler
from halfmoon.events.sqlalchemy import begin
from halfmoon.events.testing import MemoryBus

try:
    import greenlet
except ImportError:
    pass
else:
    raise AssertionError("greenlet is there")

engine = create_engine("sqlite:///" + sys.argv[1])
Session, bus, mailed = sessionmaker(engine), MemoryBus(), []
events = Publisher("P_shop", transport=bus, session=Session)
core = Publisher("P_core", transport=bus, session=engine)
events.create_tables()

def mail(event, context):
    context.session.execute(text("insert into mails values (:id)"), {"id": event.payload})

handlers = [
    Handler(group="S_mail", topic="T", code="A", function=mail, dedup=Session),
    Handler(group="S_more", topic="T", code="A", function=lambda event, context: mailed.append(event.payload), dedup=engine),
]
consumers = Consumers(*handlers, bus=bus)
consumers.create_tables()
with engine.begin() as connection:
    connection.execute(text("create table mails (id integer)"))

with consumers:
    with Session.begin() as session:
        events.publish("T", "A", 1, transactional=True)
    bus.lose_second_phase()
    with begin(engine) as connection:
        connection.execute(text("insert into mails values (0)"))
        core.publish("T", "A", 2, transactional=True)

    async def on_a_loop():
        with Session.begin() as session:
            session.execute(text("insert into mails values (-1)"))
            await events.publish_async("T", "A", 3, transactional=True)

    asyncio.run(on_a_loop())
    bus.check_now()
    bus.deliver()

with Publisher("P_outbox", transport=bus, session=scoped_session(Session), mode="outbox") as outbox:
    outbox.create_tables()
    with Session() as session:
        outbox.publish("T", "B", 4)
        session.commit()
with Session() as session:
    print(sorted(session.scalars(text("select id from mails"))), sorted(mailed), sorted(one.payload for one in bus.events()))
"""

COMMAND = """
from halfmoon.cli.outbox.database import opened
with opened("sqlite:///" + sys.argv[1]) as provider:
    print(provider.dialect)
"""


def said(script: str, *arguments: str) -> str:
    found = subprocess.run([sys.executable, "-c", WITHOUT + script, *arguments], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_blocking_sqlalchemy_needs_no_greenlet(tmp_path: Path) -> None:
    assert said(WHOLE, str(tmp_path / "shop.db")) == "[-1, 0, 1, 2, 3] [1, 2, 3] [1, 2, 3, 4]"


def test_the_outbox_on_the_command_line_needs_no_greenlet(tmp_path: Path) -> None:
    assert said(COMMAND, str(tmp_path / "shop.db")) == "sqlite"


def test_an_error_of_an_import_names_what_is_missing(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["sqlalchemy"] = None
from halfmoon.events import Publisher
from halfmoon.errors import UsageError
try:
    Publisher("P_shop", "127.0.0.1:1", session=object())
except UsageError as error:
    print(error)
"""
    assert "halfmoon[sqlalchemy]" in said(script)
