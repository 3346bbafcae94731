"""Options of reading a topic as rows: what planning and decoding ask of them, whoever parsed them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from halfmoon.data.queue_offsets import QueueOffsets


class ReadOptions(Protocol):
    """Options of reading. Times are in ms since the epoch, sizes in bytes; None: not given.

    Exactly one of ``topic`` (names), ``topic_pattern`` (a regular expression) and ``assign`` (topic, broker, queues) is given.
    """

    @property
    def topic(self) -> tuple[str, ...]: ...
    @property
    def topic_pattern(self) -> str: ...
    @property
    def assign(self) -> Mapping[str, Mapping[str, Sequence[int]]] | None: ...
    @property
    def starting_offsets(self) -> str | QueueOffsets | None: ...
    @property
    def starting_timestamp(self) -> int | None: ...
    @property
    def starting_timestamp_strategy(self) -> str: ...
    @property
    def ending_offsets(self) -> str | QueueOffsets: ...
    @property
    def ending_timestamp(self) -> int | None: ...
    @property
    def consumer_group(self) -> str: ...
    @property
    def fail_on_data_loss(self) -> bool: ...
    @property
    def fetch_bytes(self) -> int: ...

    @property
    def loss_option(self) -> str:
        """The option that passes over lost messages, as users write it: ``failOnDataLoss=false`` in Spark."""
        ...


FETCH_BYTES = 768 << 10
"""About the bytes of one record batch. The C library gives larger blocks back to the system: the next one costs a page fault each
4 KiB, which measured more than decoding."""


@dataclass(frozen=True, kw_only=True)
class TopicOptions:
    """Options of reading one topic, as `ReadOptions` has them: from a time or its oldest message, to a time or its newest."""

    topic: tuple[str, ...]
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    fail_on_data_loss: bool = True
    fetch_bytes: int = FETCH_BYTES
    topic_pattern: str = ""
    assign: Mapping[str, Mapping[str, Sequence[int]]] | None = None
    starting_offsets: str | QueueOffsets | None = None
    starting_timestamp_strategy: str = "latest"
    ending_offsets: str | QueueOffsets = "latest"
    consumer_group: str = ""
    loss_option: str = "fail_on_data_loss=False"
