"""Masters that name servers know, and the queues of a topic that may come back with one. Sends no message."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.ranges import pause_ms
from halfmoon.client.core.route import PublishInfo
from halfmoon.effects import Op, sleep
from halfmoon.errors import NetworkError, NoRoute
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import ClusterInfo, from_json
from halfmoon.wire.headers.route import GetBrokerClusterInfo


class Masters(NamedTuple):
    """The masters that name servers know: name → address; ``absent`` are brokers without one."""

    addresses: dict[str, str]
    absent: list[str]


def masters(name_servers: NameServers) -> Op[Masters]:
    """Ask for all masters. Raises NetworkError."""
    reply = yield from name_servers.ask(GetBrokerClusterInfo())
    info = from_json(ClusterInfo, bytes(reply.body))
    addresses = {name: data.broker_addrs[0] for name, data in info.broker_addr_table.items() if 0 in data.broker_addrs}
    absent = sorted({name for names in info.cluster_addr_table.values() for name in names} - addresses.keys())
    return Masters(addresses, absent)


def queues(name_servers: NameServers, topic: str, asked: Callable[[], Op[PublishInfo]], retries_max: int) -> Op[list[MessageQueue]]:
    """Return the queues that messages of a topic may go to, sorted. ``asked`` asks for them; raises NoRoute.

    While name servers know no broker, or one without its master, the topic may come back with it, and is waited for.
    """
    failures, all_there = 0, False
    while True:
        try:
            info = yield from asked()
            return sorted(MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in info.queues)
        except NoRoute:
            failures += 1
            if all_there or failures > retries_max:
                raise
        all_there = yield from _all_there(name_servers)  # asked before the route: what comes back between the two is found
        if not all_there:
            yield from sleep(pause_ms(failures))


def _all_there(name_servers: NameServers) -> Op[bool]:
    try:
        known = yield from masters(name_servers)
    except NetworkError:
        return False
    return bool(known.addresses) and not known.absent
