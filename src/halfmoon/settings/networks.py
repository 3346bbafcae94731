"""`Networks`: IP addresses and networks of a setting, and whether a peer's address is among them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network


class Networks:
    """Addresses and networks (``10.0.0.0/8``), joined by commas; false when there are none. Raises ValueError for other text."""

    def __init__(self, text: str) -> None:
        self._networks = [ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def hold(self, host: str) -> bool:
        """Return whether a host, which may have brackets and a zone, is one of these addresses; False for a name."""
        try:
            address = ip_address(host.strip("[]").partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def hold_peer(self, remote: str) -> bool:
        """Return whether the host of ``host:port`` is one of these addresses."""
        return self.hold(remote.rpartition(":")[0])
