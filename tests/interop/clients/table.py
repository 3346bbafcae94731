"""Behaviours that are tested with each client, and which client cannot show which of them, and why.

A client's file ``NAME.json`` has its ``title``, ``package`` and ``version``; under ``cannot`` the behaviours that the client itself
does not offer, each with the reason; under ``notes`` what to know of others that work. Reads files, runs nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

BEHAVIOURS = {
    "send": "sends, and the ids that it returns find the messages",
    "batch": "sends several messages as one batch",
    "exchange": "exchanges large messages, compressed, with Halfmoon's own client",
    "tag": "consumes by tag",
    "sql92": "consumes by SQL92",
    "share": "shares a topic with another member of its group",
    "broadcast": "broadcasts to every member of a group",
    "order": "consumes in order",
    "delay": "sends with a delay level",
    "deliver_at": "sends for a point in time",
    "transaction": "commits and rolls back transactions, and answers checks",
    "retry": "gets again what it failed to consume, until it is a dead letter",
    "request": "requests and replies",
    "namespace": "sends and consumes in a namespace",
    "operate": "tells operators what it is doing, consumes what they hand it, and moves where they say",
    "trace": "reports the trace of messages",
    "signed": "signs with an access key, and is refused without it",
    "tls": "speaks TLS",
    "restart": "goes on when the broker is killed and started again",
}
"""Short name → what a client does."""


def _read() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(Path(__file__).resolve().parent.glob("*.json"))}


CLIENTS = _read()
"""Short name → the client's file."""


def able(behaviour: str) -> pytest.MarkDecorator:
    """Return the mark that runs a test with each client that can show the behaviour, as the fixture ``client``."""
    clients = {name: f"{name}-{client['version']}" for name, client in CLIENTS.items() if behaviour not in client["cannot"]}
    return pytest.mark.parametrize("client", list(clients), ids=list(clients.values()), indirect=True)
