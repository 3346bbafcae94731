"""`MemoryBus`, under the name by which tests of applications import it; it is in `halfmoon.testing.events.bus`."""

from halfmoon.testing.events.bus import MemoryBus, Record, State, Waiting
from halfmoon.testing.events.transport import MemoryTransport

__all__ = ["MemoryBus", "MemoryTransport", "Record", "State", "Waiting"]
