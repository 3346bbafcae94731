"""Settings of the port for monitoring, of name servers and brokers. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from halfmoon.settings import forms, setting


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """Settings of the HTTP port that answers `/metrics`, `/healthz` and `/readyz`."""

    http_port: int | None = setting(
        None, low=0, high=65535, why="Port for monitoring (docs/monitoring.md); 0: a free one. Not set: there is none."
    )
    http_host: str = setting(
        "127.0.0.1", form=forms.HOST, why="The address that it listens on; anything but loopback requires --allow-remote."
    )
    http_series_max: int = setting(
        50_000, low=1000, high=1_000_000,
        why="Maximum number of series in /metrics, 150 bytes each; those of further topics and groups are left out and counted.",
    )  # fmt: skip
