"""Producer that sends what is encoded already, several requests at a time: for jobs of many processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Unpack

from halfmoon.client.anonymous import of_process
from halfmoon.client.constructors.options import ProducerArguments
from halfmoon.client.core.masters import queues
from halfmoon.client.core.names import check_topic, wrap
from halfmoon.client.core.produce.bulk import Encoded, deliver
from halfmoon.client.settings import ProducerSettings, settings_of
from halfmoon.client.sync import Producer
from halfmoon.model import MessageQueue, SendResult

__all__ = ["BulkProducer", "Encoded", "bulk"]


class BulkProducer(Producer):
    """Sends bodies of batches, too. Settings are those of `ProducerSettings`, by keyword; safe to use from many threads.

    ::

        with BulkProducer(group="P_jobs", nameserver="127.0.0.1:9876") as producer:
            future = producer.send_encoded(Encoded("orders", encode_batch(items)), producer.queues("orders"))
            future.result()
    """

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may go to, as `halfmoon.client.core.masters.queues`."""
        check_topic(topic)
        sender, settings = self.sender, self.settings
        asked = partial(sender.publish_info, wrap(topic, settings.namespace), 0)
        return self.submit(queues(sender.routes.name_servers, topic, asked, settings.retries_max)).result()

    def send_encoded(self, encoded: Encoded, queues: Sequence[MessageQueue]) -> Future[SendResult]:
        """Begin to send and return at once; the future says where it went, or raises as `client.core.produce.bulk.deliver`.

        The caller bounds how many are under way.
        """
        settings = self.settings
        return self.submit(deliver(self.sender, encoded, queues, settings.retries_max, settings.send_timeout_ms))


def bulk(**values: Unpack[ProducerArguments]) -> BulkProducer:
    """Return the process's started producer with these settings of `ProducerSettings`; made at the first call, kept to the end.

    A forked child gets one of its own. Raises SettingError, NoNameServer.
    """
    return of_process(BulkProducer, settings_of(ProducerSettings, values))
