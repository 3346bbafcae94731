"""A step of a migration that makes tables of `halfmoon.events.tables` by their own statements. ``sqlmigrate`` shows them."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from halfmoon.events.tables import Table, create


class MakeTables(Operation):
    """Makes tables and their indexes where they are not there yet; undone, it removes them. Asks the database routers."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.tables = tables

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The models are the business of other steps."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make them."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for table in self.tables:
                for statement in create(table, schema_editor.connection.vendor):
                    schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Remove them."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for table in self.tables:
                schema_editor.execute(f"DROP TABLE {table.name}", params=None)

    def describe(self) -> str:
        """What it does, for ``migrate --plan``."""
        return f"Make the tables {', '.join(table.name for table in self.tables)}"
