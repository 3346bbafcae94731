"""Sink ``exactly-once``: a batch transaction of Spark's tasks, committed by the driver: see `halfmoon.data.sending.transaction`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from halfmoon.client.batches import BatchName, BatchTransactions, batch_transactions
from halfmoon.data.sending import transaction
from halfmoon.data.sending.transaction import PrepareReport
from halfmoon.errors import NetworkError, NoRoute
from halfmoon.spark.clients import of_process
from halfmoon.spark.gc_freeze import freeze_imports
from halfmoon.spark.sink.options import SinkOptions


@dataclass
class PrepareMessage(PrepareReport, WriterCommitMessage):
    """Report of a task as Spark hands it to the driver."""


def transactions_of(options: SinkOptions) -> BatchTransactions:
    """Return this process's client for these options; made at its first call, and kept."""
    return of_process(batch_transactions, **options.client, transaction_timeout_ms=options.transaction_timeout)


def prepare(
    transactions: BatchTransactions, options: SinkOptions, batch: BatchName, partition: int, batches: Iterable[pa.RecordBatch]
) -> PrepareMessage:
    """Send the rows of a task to brokers, which keep them invisible; return the report for the commit.

    Raises as `halfmoon.data.sending.transaction.prepare`, with a note on what to do where brokers failed.
    """
    freeze_imports()
    try:
        return PrepareMessage(**vars(transaction.prepare(transactions, options, batch, partition, batches)))
    except (NetworkError, NoRoute) as exc:
        exc.add_note(
            "nothing of the batch is visible: are name server and brokers up, and is the topic there? Started again, a stream "
            f"continues where it was. Now a task fails after {options.retries} retries; the option retries makes it wait longer"
        )
        raise
