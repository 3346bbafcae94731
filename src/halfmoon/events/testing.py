"""`MemoryBus`, under the name by which tests of applications import it; it is in `halfmoon.testing.bus`."""

from halfmoon.testing.bus import MemoryBus, Record, State, Waiting
from halfmoon.testing.transport import MemoryTransport

__all__ = ["MemoryBus", "MemoryTransport", "Record", "State", "Waiting"]
