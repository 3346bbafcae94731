"""Settings of the port for monitoring, of name servers and brokers. Values only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from halfmoon.documentation import see
from halfmoon.settings import forms, setting

NEVER_PUBLIC = frozenset({"localhost", "local", "internal", "test", "invalid", "example"})
"""Last labels of names that no public DNS answers (RFC 6761 and 6762, and ICANN's decision on ``internal``)."""


def is_own_host(host: str, names: Collection[str] = ()) -> bool:
    """Whether the Host of a request cannot be another site: an address, a name that nobody can register, or one of ``names``.

    The DNS of a site with any other name may point here, and its scripts could read the answer then.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    return name != "" and (forms.is_ip(name) or "." not in name or name.rpartition(".")[2] in NEVER_PUBLIC or name in names)


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """Settings of the HTTP port that answers `/metrics`, `/healthz` and `/readyz`."""

    http_port: int | None = setting(
        None, low=0, high=65535, why=f"Port for monitoring ({see('monitoring')}); 0: a free one. Not set: there is none."
    )
    http_host: str = setting(
        "127.0.0.1", form=forms.HOST, why="The address that it listens on; anything but loopback requires --allow-remote."
    )
    http_names: str = setting(
        "", form=forms.pattern(r"([a-z0-9.-]+(,[a-z0-9.-]+)*)?", "names of hosts, joined by commas"),
        why="Names with a dot by which clients find it without TLS, joined by commas; others are refused, as DNS may lie.",
    )  # fmt: skip
    http_series_max: int = setting(
        50_000, low=1000, high=1_000_000,
        why="Maximum number of series in /metrics, 150 bytes each; those of further topics and groups are left out and counted.",
    )  # fmt: skip
