"""Generator of docs/clients.md from tests/interop/clients/table.py, which has one JSON file a client."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop.clients.table import BEHAVIOURS, CLIENTS  # noqa: E402
from tools.generated import write_or_check  # noqa: E402

PAGE = ROOT / "docs" / "clients.md"

HEAD = """# Published clients

Written by `tools/generate_clients.py` from the table of `tests/interop/clients`; a test says when it is stale.

Published clients work with Halfmoon's name server and broker without changes. The tests run each one, as published in its
registry, against `halfmoon serve`: every *yes* below is a passing test. Apache's Java clients 4.7.1, 4.9.7 and 5.3.3 have separate
tests, which cover all of this and more. The tests of the Rust client run where `make rust-client` has built it.

"""


def page(behaviours: Mapping[str, str], clients: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page for a table of behaviours and the files of the clients."""
    names = list(clients)
    text = HEAD + "| client | package | version |\n|---|---|---|\n"
    text += "".join(f"| {c['title']} | `{c['package']}` | {c['version']} |\n" for c in clients.values())
    text += "\n| the client … | " + " | ".join(clients[name]["title"] for name in names) + " |\n|---" + "|:-:" * len(names) + "|\n"
    for key, sentence in behaviours.items():
        text += f"| {sentence} | " + " | ".join("–" if key in clients[name]["cannot"] else "yes" for name in names) + " |\n"
    text += _reasons("Missing in the client", "reason", "cannot", behaviours, clients)
    return text + _reasons("Notes", "note", "notes", behaviours, clients)


def _reasons(title: str, column: str, kind: str, behaviours: Mapping[str, str], clients: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        f"| {client['title']} | {sentence} | {client[kind][key]} |\n"
        for client in clients.values()
        for key, sentence in behaviours.items()
        if key in client[kind]
    ]
    return f"\n## {title}\n\n| client | behaviour | {column} |\n|---|---|---|\n{''.join(rows)}" if rows else ""


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(BEHAVIOURS, CLIENTS), sys.argv[1:]))
