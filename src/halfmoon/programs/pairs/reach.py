"""Looks at the name servers of a slave or a pair's member, to warn if no client can reach it. Resolves names, and asks nobody."""

from __future__ import annotations

import asyncio

from halfmoon.broker.copies.reach import Reach
from halfmoon.broker.settings import BrokerSettings
from halfmoon.model import split_address, split_addresses

RESOLVED_S = 1.0


async def reach_of(own: BrokerSettings) -> Reach:
    """Return the reach of a broker that has met its name servers. A name that does not resolve within a second says nothing."""
    reach, loop = Reach(f"{own.address}:{own.port}"), asyncio.get_running_loop()
    for address in split_addresses(own.nameserver) if reach.is_doubtful else ():
        host, port = split_address(address)
        try:
            async with asyncio.timeout(RESOLVED_S):
                found = await loop.getaddrinfo(host, port)
        except (OSError, UnicodeError):  # a timeout is one
            continue
        reach.met(f"name server {address}, at", f"{found[0][4][0]}:{port}")
    return reach
