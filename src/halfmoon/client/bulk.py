"""The blocking client that sends what is encoded already, several requests at a time: for jobs of many processes.

Written by hand; it is an `AsyncProducer` on the background loop, without check-backs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from halfmoon.client.aio import AsyncProducer
from halfmoon.client.anonymous import of_process
from halfmoon.client.blocking import Blocking
from halfmoon.client.core.masters import queues
from halfmoon.client.core.names import check_topic, wrap
from halfmoon.client.core.produce.bulk import Encoded, deliver
from halfmoon.client.settings import ProducerSettings, settings_of
from halfmoon.model import MessageQueue, SendResult
from halfmoon.runtime.drivers.threads import background

__all__ = ["BulkProducer", "Encoded", "bulk"]


class BulkProducer(Blocking):
    """Sends bodies of batches. Settings are those of `ProducerSettings`, by keyword; safe to use from many threads.

    ::

        with BulkProducer(group="P_jobs", nameserver="127.0.0.1:9876") as producer:
            future = producer.submit(Encoded("orders", encode_batch(items)), producer.queues("orders"))
            future.result()
    """

    _client: AsyncProducer

    def __init__(self, settings: ProducerSettings | None = None, **values: Any) -> None:
        loop = background()
        super().__init__(loop.plain(AsyncProducer, settings, **values), loop)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may go to, as `halfmoon.client.core.masters.queues`."""
        client, sender = self._client, self._client._sender
        check_topic(topic)
        asked = partial(sender.publish_info, wrap(topic, client.settings.namespace))
        return self._loop.call(client._run(queues(sender.routes.name_servers, topic, asked, client.settings.retries_max)))

    def submit(self, encoded: Encoded, queues: Sequence[MessageQueue]) -> Future[SendResult]:
        """Begin to send and return at once; the future says where it went, or raises as `client.core.produce.bulk.deliver`.

        The caller bounds how many are under way.
        """
        client, settings = self._client, self._client.settings
        operation = deliver(client._sender, encoded, queues, settings.retries_max, settings.send_timeout_ms)
        return self._loop.submit(lambda: asyncio.ensure_future(client._run(operation)))


def bulk(**values: Any) -> BulkProducer:
    """Return the process's started producer with these settings of `ProducerSettings`; made at the first call, kept to the end.

    A forked child gets one of its own. Raises SettingError, NoNameServer.
    """
    return of_process(BulkProducer, settings_of(ProducerSettings, values))
