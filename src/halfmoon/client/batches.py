"""The blocking client of batch transactions: many messages of many tasks that become visible once, whole and in order, or never.

Which request is due is the caller's to know (`halfmoon.wire.headers.batch` has the order).
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar

from halfmoon.client.anonymous import AnonymousClient, of_process
from halfmoon.client.blocking import Blocking, blocking
from halfmoon.client.core.produce.batches import Attempts, BatchesCore, BatchName, BatchSettings, DecideResult, PrepareResult
from halfmoon.client.settings import settings_of
from halfmoon.model import MessageQueue
from halfmoon.runtime.drivers.threads import background
from halfmoon.wire.bodies.batches import BatchPromise

T = TypeVar("T")

__all__ = [
    "Attempts",
    "BatchName",
    "BatchPromise",
    "BatchSettings",
    "BatchTransactions",
    "DecideResult",
    "PrepareResult",
    "batch_transactions",
]


class BatchTransactions(Blocking):
    """Talks to brokers about batches, again after failures that may pass; every call may be made again.

    ::

        with BatchTransactions(nameserver="127.0.0.1:9876") as batches:
            batch, queue = BatchName("job-1", 0), batches.queues("orders")[0]
            stored = batches.prepare(batch, "a1", 0, queue, 0, 2, encode_batch(two_messages)).result()
            parts = {queue.broker_name: {"a1": BatchPromise(count=2, checksum=stored.checksum)}}
            for broker, attempts in parts.items():
                assert batches.vote(batch, broker, stored.coordinator, attempts) is None
            for broker, attempts in batches.decide(batch, stored.coordinator, parts, "").parts.items():
                batches.apply(batch, broker, stored.coordinator, attempts)

    Settings are those of `BatchSettings`, by keyword. Safe to use from many threads. `batch_transactions` gives the one of a
    process.

    Every call raises UsageError where a broker knows no batch transactions (an Apache one), NetworkError and BrokerError when it
    failed too often or for good.
    """

    _client: AnonymousClient[BatchSettings]

    def __init__(self, settings: BatchSettings | None = None, **values: Any) -> None:
        loop = background()
        super().__init__(loop.plain(AnonymousClient, settings or settings_of(BatchSettings, values)), loop)
        self.core = BatchesCore(self._client.instance, self._client.settings)

    queues = blocking(BatchesCore.queues)
    births = blocking(BatchesCore.births)

    def prepare(
        self, batch: tuple[str, int], attempt: str, partition: int, queue: MessageQueue, first_seq: int, count: int, body: bytes,
        *, sys_flag: int = 0,
    ) -> Future[PrepareResult]:  # fmt: skip
        """Begin to send a piece of an attempt to a queue's broker, which keeps it unseen; how many are under way is the caller's.

        ``body`` holds ``count`` messages as `halfmoon.wire.record.encode_batch` packs them; ``first_seq`` counts those of this
        attempt for this queue before them. Pieces are published in the order of (partition, first_seq). ``sys_flag`` says how the
        bodies are compressed (`halfmoon.wire.codes`).
        """
        operation = self.core.prepare(batch, attempt, partition, queue, first_seq, count, body, sys_flag=sys_flag)
        return self.submit(operation)

    vote = blocking(BatchesCore.vote)
    decide = blocking(BatchesCore.decide)
    apply = blocking(BatchesCore.apply)
    resolve = blocking(BatchesCore.resolve)
    abort = blocking(BatchesCore.abort)


def batch_transactions(**values: Any) -> BatchTransactions:
    """Return the process's started client with these settings of `BatchSettings`; made at the first call, kept to the end.

    A forked child gets one of its own. Raises SettingError, NoNameServer.
    """
    return of_process(BatchTransactions, settings_of(BatchSettings, values))
