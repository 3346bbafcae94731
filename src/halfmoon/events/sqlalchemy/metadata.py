"""The tables of events as tables of SQLAlchemy, for tools that compare or create by these, such as Alembic. Runs no statement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Identity, Index, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects import mysql

from halfmoon.events import tables
from halfmoon.events.tables import CONSUMED, OUTBOX, SENT, TOKENS

MYSQL = ("mysql", "mariadb")


def add_tables(metadata: MetaData, *wanted: tables.Table, dialect: str = "postgresql", schema: str | None = None) -> list[Table]:
    """Add the tables of events to metadata, as `create_tables` makes them, and return them. One that is there stays as it is.

    ``wanted``: only these of TOKENS, OUTBOX, SENT and CONSUMED of `halfmoon.events.tables`. ``dialect``: the name of the engine's
    that Alembic compares with. Tables are the same for all, but an identity column of PostgreSQL looks like a change in others.
    ``schema``: where they are; None: as the metadata says.
    """
    return [_table(metadata, table, dialect, schema or metadata.schema) for table in wanted or (TOKENS, OUTBOX, SENT, CONSUMED)]


def _table(metadata: MetaData, table: tables.Table, dialect: str, schema: str | None) -> Table:
    if (name := f"{schema}.{table.name}" if schema else table.name) in metadata.tables:
        return metadata.tables[name]
    indexes = [Index(tables.index_name(table, names), *names) for names in table.indexes]
    numbered = any(column.kind == "serial" for column in table.columns)
    columns = [_column(table, column, dialect) for column in table.columns]
    return Table(table.name, metadata, *columns, *indexes, schema=schema, sqlite_autoincrement=numbered)


def _column(table: tables.Table, column: tables.Column, dialect: str) -> Column[Any]:
    text = mysql.VARCHAR(column.length or None, charset="utf8mb4", collation="utf8mb4_bin")
    kinds: dict[str, Any] = {
        "text": String(column.length or None).with_variant(text, *MYSQL),
        "int": BigInteger(),
        "bytes": LargeBinary().with_variant(mysql.LONGBLOB(), *MYSQL),
        "serial": BigInteger().with_variant(Integer(), "sqlite"),
    }
    numbered = [Identity(always=False)] if column.kind == "serial" and dialect not in ("sqlite", *MYSQL) else []
    return Column(column.name, kinds[column.kind], *numbered, nullable=column.null, primary_key=column.name in table.key)
