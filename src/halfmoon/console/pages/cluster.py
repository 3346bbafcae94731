"""Pages of the cluster: its health over half an hour, its brokers, and connected clients."""

from __future__ import annotations

from msgspec.structs import asdict

from halfmoon.console.page import Asked, Facts, Page
from halfmoon.console.sampler import RANGES
from halfmoon.errors import UsageError

ROWS_MAX = 1000
"""Most lines of a broker's statistics that are shown: Halfmoon's have some 60."""


async def overview(asked: Asked) -> Facts:
    """Return the facts of the sampler without a request: the same for all visitors, until there are newer ones."""
    return asked.services.sampler.view(asked.choice("range", RANGES, "30 min"))


async def brokers(asked: Asked) -> Facts:
    """Return all brokers, and the addresses of the name servers."""
    found = asked.sorted(sorted(await asked.admin.brokers(), key=lambda each: (each.cluster, each.name, each.id)))
    return {"brokers": found, "name_servers": name_servers(asked)}


async def broker(asked: Asked) -> Facts:
    """Return one broker of the cluster, the slaves of a master, and its statistics as it names them."""
    address = asked.text("address")
    found = [each for each in await asked.admin.brokers() if each.address == address]
    if not found:  # nor is anything else asked: an address that somebody typed may be anybody's
        raise UsageError(f"the cluster has no broker {address}")
    reports = found[0].version is not None
    info = await asked.admin.broker_runtime_info(address) if reports else {}
    slaves = await asked.admin.slaves(address) if reports and not found[0].id else []
    statistics = dict(sorted(info.items())[:ROWS_MAX])
    return {"heading": found[0].name, "broker": found[0], "slaves": slaves, "statistics": statistics}


def name_servers(asked: Asked) -> list[str]:
    """Return the addresses of the name servers that the console asks."""
    return [address for address in asked.admin.settings.nameserver.split(";") if address]


async def clients(asked: Asked) -> Facts:
    """Return connected clients, of one group if the query names it."""
    hidden: list[str] = []
    listed = await asked.admin.clients(asked.text("group", "") or None, failing=hidden)
    clients = [{**asdict(each), "brokers": ", ".join(each.brokers)} for each in listed.clients]
    rows, more = asked.table(clients, lambda each: "{kind} {group} {client_id} {address}".format_map(each), "kind")
    hidden += [f"producers of groups that are not named, at {address}" for address in listed.without_producers]
    return {"clients": rows, "next": more, "not_reported": hidden}


OVERVIEW = (
    Page("/", "Overview", "overview.html", overview, menu="Overview"),
    Page("/overview/live", "Overview", "overview_live.html", overview, under="/", fragment=True),
)
PAGES = (
    Page("/brokers", "Brokers", "brokers.html", brokers, menu="Cluster"),
    Page("/broker", "Broker", "broker.html", broker, under="/brokers"),
    Page("/clients", "Clients", "clients.html", clients, menu="Cluster"),
)
