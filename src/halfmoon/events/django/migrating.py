"""Steps of migrations: tables of `events.tables` made and changed by its own statements. ``sqlmigrate`` shows them."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from halfmoon.events.tables import TOKENS, Table, create, migrate


class MakeTables(Operation):
    """Step that makes tables and their indexes where they are not there yet; undone, it removes them. Asks the database routers."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.tables = tables

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: other steps have the models."""

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
        """Return a description for ``migrate --plan``."""
        return f"Make the tables {', '.join(table.name for table in self.tables)}"


class UpdateTable(Operation):
    """Step that brings a table of an older form up to date, and leaves others alone. Asks the database routers."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, table: Table) -> None:
        self.table = table

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: other steps have the models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Change it, its rows are kept."""
        connection = schema_editor.connection
        if not router.allow_migrate(connection.alias, app_label):
            return
        with connection.cursor() as cursor:
            columns = {column.name for column in connection.introspection.get_table_description(cursor, self.table.name)}
        if self.table is TOKENS or not columns >= {column.name for column in self.table.columns}:
            for statement in migrate(self.table, connection.vendor):
                schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Do nothing: the step before makes the table in today's form."""

    def describe(self) -> str:
        """Return a description for ``migrate --plan``."""
        return f"Bring the table {self.table.name} up to date"
