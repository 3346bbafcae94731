"""`Context`: what the services of one broker share. Each takes from it what it needs, at its construction."""

from __future__ import annotations

from random import Random

import msgspec

from halfmoon.broker.consumers.clients import Clients
from halfmoon.broker.consumers.groups import Groups
from halfmoon.broker.consumers.offsets import Offsets
from halfmoon.broker.pull.deleted_topics import StaleOffsets
from halfmoon.broker.send.pending_replies import Durable
from halfmoon.broker.send.waiting_for_queue import Firsts
from halfmoon.broker.settings import BrokerSettings
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
