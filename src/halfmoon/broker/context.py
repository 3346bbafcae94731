"""`Context`: what the services of one broker share. Each takes from it what it needs, at its construction."""

from __future__ import annotations

from random import Random

import msgspec

from halfmoon.broker.clients import Clients
from halfmoon.broker.durable import Durable
from halfmoon.broker.firsts import Firsts
from halfmoon.broker.groups import Groups
from halfmoon.broker.offsets import Offsets
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.stale import StaleOffsets
from halfmoon.broker.stats import Stats
from halfmoon.broker.tables import Tables
from halfmoon.broker.topics import Topics
from halfmoon.ports import Disk
from halfmoon.store.store import Store
from halfmoon.wire.peer import Peers


class Context(msgspec.Struct, eq=False):
    """Settings, the store and the tables; who is connected; who waits for the device, or for a queue.

    ``host`` is the broker's address, packed.
    """

    settings: BrokerSettings
    store: Store
    disk: Disk
    tables: Tables
    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    stats: Stats
    peers: Peers
    durable: Durable
    firsts: Firsts
    stale: StaleOffsets
    host: bytes
    random: Random
    started_ms: int
