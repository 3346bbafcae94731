"""`Reader`: the bytes that connections brought, cut into frames. This twin takes none of them.

The compiled twin reads ordinary sends and decisions into columns by itself. Here all of them are given back, so that there is one
way in Python: `halfmoon.wire.command.decode`, and then the gate or the decisions, which form the same columns.
"""

from __future__ import annotations

from halfmoon.columns.completions import Completions
from halfmoon.columns.frames import Frame, split_frames
from halfmoon.columns.messages import Group
from halfmoon.columns.signing import Verifier
from halfmoon.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX


class Reader:
    """The columns of a turn. ``suffix`` are the pairs that each stored message gets, ``body_max`` the longest body."""

    def __init__(self, suffix: bytes, body_max: int) -> None:
        pass

    def open(self, topic: str, queue_id: int) -> None:
        """Take ordinary sends to a queue from now on."""

    def open_halves(self, topic: str, queue_id: int, suffix: bytes) -> None:
        """Take ordinary half messages for a queue from now on; ``suffix`` are whole pairs that say where they belong."""

    def open_batch(self, text: bytes, suffix: bytes, *, wait: bool) -> None:
        """Take batches with these properties: each message gets ``suffix``, and the sender waits for the sync or not."""

    def close(self) -> None:
        """Take nothing: topics changed."""

    def __len__(self) -> int:
        """Return how many queues are open."""
        return 0

    def read(
        self, peer: int, host: bytes, data: bytes, verifier: Verifier | None = None
    ) -> tuple[list[Frame], int, int, str | None]:  # fmt: skip
        """Read the bytes of a connection; ``host`` is stored as the messages' birth host.

        Frames that a ``verifier`` does not know are something else.

        A frame that a ``verifier`` does not know is something else. Returns the frames that are something else, how many bytes all
        frames take, how many the next one needs in all (8 until its length is known), and what is wrong with the next frame, if
        anything.
        """
        return split_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)

    def take(self) -> list[Group]:
        """Take out what was read since the last call: a `Group` each."""
        return []

    def completions(self) -> Completions | None:
        """Take out what producers decided since the last call; None: nothing."""
        return None
