"""The fast path of sends and decisions behind access control: those that a connection was found to be allowed to send.

The first request of a connection, what its account was not yet seen to send, and all that is refused go the general path, which
checks and answers them. Decides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.broker.access.access import Access
from halfmoon.hot import Frame, Verifier, split_frames
from halfmoon.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from halfmoon.wire.peer import Peer

Found = tuple[list[Frame], int, int, str | None]


class CheckedReading:
    """Reads what connections brought, as `Gate.read` does, which is ``read``."""

    def __init__(self, access: Access, read: Callable[[Peer, bytes, Verifier | None], Found]) -> None:
        self._access, self._read = access, read

    def read(self, peer: Peer, data: bytes) -> Found:
        """Return what is left for the general path, see `halfmoon.hot.Reader.read`; the others wait for the gate's turn."""
        known = self._access.known(peer)
        if known.verifier is None and not known.white:
            return split_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)
        return self._read(peer, data, None if known.white else known.verifier)
