"""Cluster that jobs read: its name servers, and its clients. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from halfmoon.client.admin import Admin
from halfmoon.client.batches import BatchTransactions, batch_transactions
from halfmoon.client.ranges import Ranges
from halfmoon.spark.clients import client_of, of_process
from halfmoon.spark.source.options import SourceOptions, source_options

HALF_MESSAGES = {"halfMessages": "true"}
"""Option of the source that lets an audit read half messages and op records."""


@dataclass(frozen=True)
class Cluster:
    """Cluster to read: name servers (``host:port`` joined by ``;``), and further options of the source."""

    endpoints: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Cluster({self.endpoints!r}, options={sorted(self.options)})"  # their values may be secrets

    def with_half_messages(self) -> Cluster:
        """Return the same cluster for an audit of transactions."""
        return Cluster(self.endpoints, {**self.options, **HALF_MESSAGES})

    @cached_property
    def checked(self) -> SourceOptions:
        """The options of the source, checked at the first use. Raises UsageError."""
        return source_options({"topic": "any", **self.options, "endpoints": self.endpoints}, "batch")

    def client(self) -> Ranges:
        """Return this process's client for the cluster. Raises UsageError for wrong options."""
        return client_of(self.checked)

    def admin(self) -> Admin:
        """Return an administration client, not started. Raises UsageError for wrong options."""
        return Admin(nameserver=self.endpoints, **self.checked.signing)

    def transactions(self) -> BatchTransactions:
        """Return this process's client of batch transactions. Raises UsageError for wrong options."""
        return of_process(batch_transactions, nameserver=self.endpoints, **self.checked.signing)
