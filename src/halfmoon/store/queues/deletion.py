"""`TopicDeletion`: removes the queues of a topic from all parts of a store. Its records stay in the log until their file goes."""

from __future__ import annotations

from halfmoon.store.health import Health
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.maintenance import Maintenance
from halfmoon.store.queues.creation import QueueCreation
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.reservations import Reservations
from halfmoon.store.queues.visible_offsets import VisibleOffsets
from halfmoon.store.queues.write_out import WriteOut


class TopicDeletion:
    """The parts of a store that know queues."""

    def __init__(
        self, log: CommitLog, queues: Queues, visible: VisibleOffsets, write_out: WriteOut, creation: QueueCreation,
        reservations: Reservations, inventory: Inventory, maintenance: Maintenance, health: Health,
    ) -> None:  # fmt: skip
        self._log, self._queues, self._visible, self._write_out, self._creation = log, queues, visible, write_out, creation
        self._reservations, self._inventory, self._maintenance, self._health = reservations, inventory, maintenance, health

    def delete(self, topic: str) -> bool:
        """Remove the queues of a topic; return whether there were any."""
        queues = [self._queues.pop(key) for key in sorted(key for key in self._queues if key[0] == topic)]
        self._visible.forget(topic)
        self._write_out.forget(topic)
        self._creation.forget(topic)
        try:
            self._reservations.forget(topic)  # first: a reservation that comes back without a row would create the queue again
            if queues:
                self._inventory.forget(topic, self._log.end)
        except OSError as exc:
            self._health.write_failed(f"the deletion of topic {topic}", exc)  # if that passes, the next start may find it again
        if queues:
            self._maintenance.remove_queues(queues)
        return bool(queues)
