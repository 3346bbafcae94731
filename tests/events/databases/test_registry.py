"""A provider of another package: found by its entry point, and used by a publisher and by consumers without a file of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halfmoon.errors import UsageError
from halfmoon.events.databases.registry import GROUP, provider_of
from halfmoon.events.local_block import LOCAL

PACKAGE = '''
"""Units of a database library of somebody's own, and their provider."""
import sqlite3
from contextlib import contextmanager
from halfmoon.events.databases.provider import DatabaseProvider
from halfmoon.events.dbapi import DbapiRows
from halfmoon.events.transaction import LocalTransaction, Status, bind

class Shop:
    def __init__(self, path):
        self.path = path

class ShopProvider(DatabaseProvider):
    dialect = "sqlite"
    ways = "publish inside a unit"

    def __init__(self, shop):
        super().__init__()
        self.shop = shop

    @contextmanager
    def unit(self):
        connection = sqlite3.connect(self.shop.path)
        local = LocalTransaction(self)
        local.facts["connection"] = connection
        bind(local)
        with connection:
            yield connection
        local.end(Status.COMMITTED)
        connection.close()

    def rows(self, transaction):
        return DbapiRows(transaction.facts["connection"].cursor, "sqlite", "named")

    @contextmanager
    def fresh(self, *, lock_wait_ms=1000):
        connection = sqlite3.connect(self.shop.path)
        with connection:
            yield DbapiRows(connection.cursor, "sqlite", "named")
        connection.close()

def provider_of(given, *, bind=None, schema=None):
    return ShopProvider(given) if isinstance(given, Shop) else None
'''

PROGRAM = """
import sys
from shopdb import Shop
from halfmoon.events import Publisher
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.consuming.on import Handler
from halfmoon.events.testing import MemoryBus

shop, bus, processed = Shop(sys.argv[1]), MemoryBus(), []
events = Publisher("P_shop", transport=bus, session=shop)
events.create_tables()
handler = Handler(
    group="S_mail", topic="T", code="A", dedup=shop,
    function=lambda event, context: processed.append((event.payload, context.session.dialect)),
)
consumers = Consumers(handler, bus=bus)
consumers.create_tables()
with consumers, events:
    with events.provider.unit() as connection:
        connection.execute("CREATE TABLE orders (id INT)")
        events.publish("T", "A", 42, transactional=True)
    bus.deliver()
with events.provider.fresh() as rows:
    print(processed, rows.all("SELECT COUNT(*) FROM halfmoon_consumed"))
"""


def test_a_provider_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    metadata = tmp_path / "shopdb-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shopdb\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\nshopdb = shopdb:provider_of\n")
    (tmp_path / "shopdb.py").write_text(PACKAGE)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"

    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "shop.db")], capture_output=True, text=True, timeout=120)

    assert done.stdout.strip() == "[(42, 'sqlite')] [(1,)]", done.stderr


def test_settings_of_sessions_do_not_go_with_a_provider() -> None:
    assert provider_of(LOCAL, "dedup") is LOCAL
    with pytest.raises(UsageError, match="it has its own"):
        provider_of(LOCAL, "session", schema="sales")
