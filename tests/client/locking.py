"""A scripted broker that locks queues, and orderly consumers of it, for tests of ordered consumption."""

from __future__ import annotations

from halfmoon.model import ConsumeFrom, MessageQueue
from halfmoon.wire.bodies import LockBatchReply, LockBatchRequest, from_json, to_json
from halfmoon.wire.headers.client import LockBatchMq, UnlockBatchMq
from tests.client.queue_of import Queues, push, started
from tests.client.scripted import Reply

FIRST = ConsumeFrom.FIRST_OFFSET
QUEUE = MessageQueue("orders", "broker-a", 0)
BROKER = "broker-a:1"


class Locking(Queues):
    """A scripted broker that locks queues, but those of ``taken`` for somebody else. ``locked`` are locked for us."""

    def __init__(self, script, queue_count=1, **values):
        super().__init__(script, queue_count, **values)
        self.taken, self.locked = set(), set()
        script.on(LockBatchMq, self._lock)
        script.on(UnlockBatchMq, self._unlock)

    def _lock(self, seen):
        wanted = [q for q in from_json(LockBatchRequest, seen.body).mq_set if q.queue_id not in self.taken]
        self.locked |= set(wanted)
        return Reply(body=to_json(LockBatchReply(wanted)))

    def _unlock(self, seen):
        self.locked -= set(from_json(LockBatchRequest, seen.body).mq_set)
        return Reply()


def orderly(script, listener, **values):
    core = push(script, orderly=True, consume_from=FIRST, **values)
    core.on_message(listener)
    return core


def consuming(script, listener, filled, *, queue_count=1, **values):
    """An orderly consumer that was started where the first queue holds so many messages; return its broker, too."""
    broker = Locking(script, queue_count)
    broker.fill(filled)
    return broker, started(script, orderly(script, listener, **values))


def kinds(script, topic="orders"):
    return [type(seen.request) for seen in script.seen if getattr(seen.request, "topic", topic) == topic]


def locks(script):
    return [from_json(LockBatchRequest, seen.body) for seen in script.asked(LockBatchMq)]


def share(script, broker, core, members):
    """The group has these members now; ours takes its share."""
    broker.members = members
    core.group_changed()
    script.run_for(50)
