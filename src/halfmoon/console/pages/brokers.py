"""The brokers of the cluster, and what one of them says of itself."""

from __future__ import annotations

from halfmoon.console.page import Asked, Facts, Page
from halfmoon.errors import UsageError

ROWS_MAX = 1000
"""Lines of a broker's own statistics that are shown: Halfmoon's has some 60."""


async def brokers(asked: Asked) -> Facts:
    """Return all brokers, and the addresses of the name servers."""
    found = sorted(await asked.admin.brokers(), key=lambda each: (each.cluster, each.name, each.id))
    return {"brokers": found, "name_servers": name_servers(asked)}


async def broker(asked: Asked) -> Facts:
    """Return one broker of the cluster, and its statistics as it names them."""
    address = asked.text("address")
    found = [each for each in await asked.admin.brokers() if each.address == address]
    if not found:  # nor is anything else asked: an address that somebody typed may be anybody's
        raise UsageError(f"the cluster has no broker {address}")
    info = {} if found[0].version is None else await asked.admin.broker_runtime_info(address)
    return {"heading": found[0].name, "broker": found[0], "statistics": dict(sorted(info.items())[:ROWS_MAX])}


def name_servers(asked: Asked) -> list[str]:
    """Return the addresses of the name servers that the console asks."""
    return [address for address in asked.admin.settings.nameserver.split(";") if address]


PAGES = (
    Page("/brokers", "Brokers", "brokers.html", brokers, menu=True),
    Page("/broker", "Broker", "broker.html", broker, under="/brokers"),
)
