"""Removal at an operator's request: expired log files, queue files that point only below the log, queues of missing topics.

Follows AdminBrokerProcessor and DefaultMessageStore (RocketMQ 4.9.8). A kill at any point loses no message that can be read: the
next start finds the files that were not removed yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from halfmoon.broker.admin.trimming import PATH as TRIMS
from halfmoon.broker.consumers.offsets import PATH as OFFSETS
from halfmoon.broker.context import Context
from halfmoon.broker.names import is_system_topic
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.saving import saves
from halfmoon.broker.service import Service
from halfmoon.instant import Steady
from halfmoon.logs import listed
from halfmoon.wire.headers.admin import CleanExpiredConsumequeue, CleanUnusedTopic, DeleteExpiredCommitlog

log = logging.getLogger("halfmoon.broker")


class Cleaning(Service):
    """The service that answers 306, 316 and 329."""

    def __init__(self, context: Context, forget_topic: Callable[[str, Steady], None]) -> None:
        """``forget_topic(topic, now)`` removes the queues of a topic and all that was kept about it."""
        self._store, self._topics, self._forget_topic = context.store, context.topics, forget_topic

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            CleanExpiredConsumequeue: self.expired_queues,
            CleanUnusedTopic: self.unused_topics,
            DeleteExpiredCommitlog: self.expired_log,
        }

    def expired_queues(self, request: Request) -> Reply:
        """Remove files of consume queues that point only at messages that are gone (306); done in slices, after the answer.

        Differs: a queue of which nothing is left keeps its last file. The original removes the queue, whose next message then has
        offset 0 again, so that groups with a stored offset skip new messages.
        """
        log.warning("files of expired consume queues are removed, as %s asks", request.peer.remote)
        self._store.maintenance.correct_queues()
        return Reply()

    def expired_log(self, request: Request) -> Reply:
        """Delete expired log files at any hour, in the next 20 rounds (329). Files that are needed stay."""
        log.warning("expired log files are deleted, as %s asks", request.peer.remote)
        self._store.maintenance.clean_now(request.now.steady)
        return Reply()

    @saves(OFFSETS, TRIMS)
    def unused_topics(self, request: Request) -> Reply:
        """Remove the queues of topics that do not exist (316).

        System topics stay, and so does a topic with a queue that is held: something is still to be published in it.
        """
        store, ours = self._store, self._topics.own_names()
        held = {queue.topic for queue in store.queues.values() if queue.held}
        unused = [
            topic
            for topic in store.topics()
            if self._topics.get(topic) is None and topic not in ours and topic not in held and not is_system_topic(topic)
        ]
        for topic in unused:
            self._forget_topic(topic, request.now.steady)
        if unused:
            log.warning("queues of topics that do not exist are removed, as %s asks: %s", request.peer.remote, listed(unused))
        return Reply()
