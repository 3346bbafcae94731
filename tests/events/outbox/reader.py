"""A group that reads a topic from its beginning: events as consumers get them."""

from __future__ import annotations

import threading
import time

from halfmoon import ConsumeFrom, PushConsumer


class Reader:
    """What a group was given: messages in the order of their coming, and when each came first (seconds, monotonic)."""

    def __init__(self, cluster, topic, group=""):
        self.messages, self.at_s, self._lock = [], {}, threading.Lock()
        self.consumer = PushConsumer(
            group=group or f"S_{topic}", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET
        )
        self.consumer.subscribe(topic)
        self.consumer.on_message(self._take)

    def _take(self, messages):
        with self._lock:
            for one in messages:
                self.messages.append(one)
                self.at_s.setdefault(one.msg_id, time.monotonic())

    @property
    def ids(self):
        with self._lock:
            return [one.msg_id for one in self.messages]

    def __enter__(self):
        self.consumer.start()
        return self

    def __exit__(self, *error):
        self.consumer.close()
