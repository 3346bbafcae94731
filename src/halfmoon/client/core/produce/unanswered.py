"""Where a message may lie whose answer was lost: its sender's next attempt under the same id goes to that broker first.

Only that broker can tell that it has the message (`halfmoon.model.Message.attempt`); another one would store it a second time.
Holds the last few, by id. Sends nothing.
"""

from __future__ import annotations

from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.client.core.route import PublishInfo
from halfmoon.errors import ConnectionLost, NetworkError, RequestTimeout
from halfmoon.model import MessageQueue

UNSURE_MAX = 4096
"""Ids that are remembered; the oldest goes. An attempt follows within seconds, or never."""


class UnansweredSends:
    """The brokers that may have a message, by its id. Safe to use from many threads."""

    def __init__(self) -> None:
        self._brokers: dict[str, str] = {}

    def note(self, outgoing: Outgoing, queue: MessageQueue, error: NetworkError) -> None:
        """Remember an attempt that left and was not answered."""
        if isinstance(error, RequestTimeout | ConnectionLost):
            for msg_id in outgoing.msg_id.split(","):
                self._brokers[msg_id] = queue.broker_name
                if len(self._brokers) > UNSURE_MAX:
                    # A copy: other threads may change the table while its first key is looked for.
                    self._brokers.pop(next(iter(self._brokers.copy()), ""), None)

    def queue(self, outgoing: Outgoing, info: PublishInfo) -> MessageQueue | None:
        """Return a queue of the broker that may have the message, once; None where nothing is known, or the broker is gone."""
        name = self._brokers.pop(outgoing.msg_id, None) if self._brokers else None
        if name is None:
            return None
        return next((queue for queue in info.queues if queue.broker_name == name), None)
