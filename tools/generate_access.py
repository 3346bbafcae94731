"""Generator of the table of permissions in docs/access.md, from the protocol table. Run it after a change of a permission.

``python -m tools.generate_access`` writes the table; with ``--check`` it only reports whether the table is stale (exit code 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

from halfmoon.wire.needs import Needs
from halfmoon.wire.table import REQUESTS
from tools.generate_protocol import Table, answered, markdown
from tools.generated import write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "access.md"
BEGIN, END = "<!-- requests: written by tools/generate_access.py -->\n", "<!-- end of requests -->"


def page(path: Path = PAGE) -> str:
    """Return the page with the table as it is now."""
    text = path.read_text()
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


def table() -> str:
    """Return a row for every request that a broker or a name server answers: code, answering server, permission."""
    rows: Table = [("code", "request", "answered by", "needs", "with `acl_mode=ROCKETMQ`")]
    servers = {who: codes for who, codes in answered().items() if who != "client"}
    for code in sorted(frozenset().union(*servers.values())):
        line = REQUESTS[code]
        assert line.needs is not None, f"{line.name} declares no permission: see halfmoon.wire.needs"
        by = ", ".join(who for who, codes in servers.items() if code in codes)
        rows.append((str(code), line.name, by, line.needs.text(line.names), _original(line.needs, line.names)))
    return markdown(rows)


def _original(needs: Needs, names: dict[str, str]) -> str:
    return "" if needs.rocketmq is None else needs.rocketmq.text(names)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), sys.argv[1:]))
