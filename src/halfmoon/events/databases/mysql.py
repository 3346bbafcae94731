"""What is particular about transactions of MySQL and MariaDB, for all who follow them: statements that commit by themselves.

They commit what came before them as they begin, also where they fail then; what follows is another transaction. So a rollback that
comes after one says nothing of what came before it.
"""

from __future__ import annotations

import re

_COMMENTS = r"(?:\s+|--[^\n]*\n|\#[^\n]*\n|/\*.*?\*/)*"
_COMMITS = re.compile(
    _COMMENTS + r"(?:(?:CREATE|DROP)(?!\s+TEMPORARY)|ALTER|TRUNCATE|RENAME|GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR|CHECK|CACHE|FLUSH|"
    r"INSTALL|UNINSTALL|LOAD\s+INDEX|LOCK|UNLOCK|RESET|CHANGE|STOP|BEGIN|START|CALL|SET\s+PASSWORD|SET\s+(?:@@|SESSION\s+)?autocommit)\b",
    re.IGNORECASE | re.DOTALL,
)


def may_commit(statement: object) -> bool:
    """Return whether a statement commits by itself what came before it, or may: a procedure that is called may."""
    if isinstance(statement, bytes):
        statement = statement.decode(errors="replace")
    return isinstance(statement, str) and _COMMITS.match(statement) is not None
