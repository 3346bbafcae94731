"""Settings of accepted connections, of name servers and brokers. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from halfmoon.settings import forms, setting


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """Settings of the connections that a server accepts."""

    proxy_protocol_from: str = setting(
        "",
        form=forms.NETWORKS,
        why="Proxies whose PROXY protocol preamble is believed; empty: none is read. Whoever may send one chooses its address.",
    )
    connections_max: int = setting(
        10_000,
        low=8,
        high=1_000_000,
        why="Maximum number of connections, if the limit of open files (ulimit -n) allows so many; one more is closed at once.",
    )
    connections_per_address_max: int = setting(
        8_000,
        low=0,
        high=1_000_000,
        why="Maximum number of connections of one IPv4 address or IPv6 /64 network; at most four fifths of all. 0: no limit. "
        "Clients behind a NAT share an address; those behind a proxy in proxy_protocol_from have their own.",
    )
