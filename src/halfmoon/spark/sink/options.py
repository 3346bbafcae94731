"""Options of the sinks as one table, checked as those of the source are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from halfmoon.data.sending.encode import Encoding
from halfmoon.data.sending.too_large import TooLargeRows
from halfmoon.errors import UsageError
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.model import MessageQueue, split_addresses
from halfmoon.spark import option_parsing
from halfmoon.spark.source.options import ClientOptions, option, parse
from halfmoon.wire.bodies.batches import ONE_RUN
from halfmoon.wire.codes import COMPRESSED, LZ4, ZLIB, ZSTD
from halfmoon.wire.compression import compress

SPARK_OPTIONS = frozenset({"checkpointlocation"})
"""Options of the stream itself, which Spark also hands to its sink."""

EXACTLY = "exactly-once"
COMPRESSIONS = {"zlib": ZLIB, "lz4": LZ4, "zstd": ZSTD}
DELIVERIES = ("at-least-once", "idempotent", EXACTLY)
NEEDED_DELIVERIES = {
    "transactionalId": ("idempotent", EXACTLY),
    "batchNumber": (EXACTLY,),
    "strictReplay": (EXACTLY,),
    "transactionTimeout": (EXACTLY,),
}
"""Options that need one of these deliveries; with another one they are refused."""


@dataclass(frozen=True, kw_only=True)
class SinkOptions(ClientOptions):
    """Options of a sink. Times are in ms, sizes in bytes."""

    topic: str = option("", parse=option_parsing.text, why="The topic for all rows; by default the column `topic`.")
    delivery: str = option(
        "at-least-once",
        parse=option_parsing.one_of(*DELIVERIES),
        why="`at-least-once`, `idempotent` or `exactly-once`, see [above](#delivery-guarantees).",
    )
    transactional_id: str = option(
        "",
        parse=option_parsing.text,
        why="`exactly-once`: a batch job (`df.write`) with an id is written once, however often it runs; so each target needs "
        "an id of its own. `idempotent` also takes an id, within its guarantee.",
    )
    batch_number: int = option(
        0,
        parse=option_parsing.count(0, 1 << 62),
        why="`exactly-once`: the number of a batch job in a series with one `transactionalId`. The last number again writes "
        "nothing, if it has the same rows and topics; a lower one is an error, or writes nothing with `strictReplay=false`.",
    )
    transaction_timeout: int = option(
        3_600_000,
        parse=option_parsing.duration(1_000, 7 * 86_400_000),
        why="`exactly-once`: a broker aborts an undecided batch this long after its last activity (a piece or a vote); at most 7 "
        "days. A broker refuses values over its `batch_timeout_max_ms`.",
    )
    strict_replay: bool = option(
        True,
        parse=option_parsing.flag,
        why="`exactly-once`, for a batch that runs again with other rows (any column of a message): `true`: an error; `false`: "
        "what was written first stays. To write it to other topics, or to one that was deleted since, is always an error.",
    )
    producer_group: str = option(
        "", parse=option_parsing.text, why="The producer group that operators see; by default `spark-sink`."
    )
    batch_bytes: int = option(1 << 20, parse=option_parsing.size(1 << 10, BODY_BYTES_MAX), why="Most bytes of one request.")
    in_flight: int = option(4, parse=option_parsing.count(1, 64), why="Parallel requests of a task.")
    on_too_large: str = option(
        "fail",
        parse=option_parsing.one_of("fail", "dlq"),
        why="For a message over `messageBytes`: `fail` fails the task; `dlq` sends its beginning and the reason to `dlqTopic`.",
    )
    dlq_topic: str = option("", parse=option_parsing.text, why="The topic for `onTooLarge=dlq`; with `exactly-once` it must exist.")
    message_bytes: int = option(
        BODY_BYTES_MAX,
        parse=option_parsing.size(1 << 10, BODY_BYTES_MAX),
        why="Most bytes of a message, as the brokers' `maxMessageSize`.",
    )
    compression: str = option(
        "none",
        parse=option_parsing.one_of("none", *COMPRESSIONS),
        why="Of each body: `none`, `zlib`, `lz4` or `zstd` (with their packages).",
    )
    extra_columns: str = option(
        "ignore",
        parse=option_parsing.one_of("ignore", "error"),
        why="For columns that are not part of a message (`brokerName`, `msgId` …), in frames read from a topic: `ignore` leaves "
        "them out with one warning; `error` refuses them.",
    )

    @property
    def sys_flag(self) -> int:
        """The flag by which consumers know how bodies are compressed."""
        kind = COMPRESSIONS.get(self.compression, 0)
        return COMPRESSED | kind if kind else 0

    def encoding(self, queues: Callable[[str], Sequence[MessageQueue]], partition: int) -> Encoding:
        """Return the encoding of a task's rows. Its ``dead`` counts for this task alone."""
        return Encoding(
            topic=self.topic or None,
            batch_bytes=self.batch_bytes,
            message_bytes_max=self.message_bytes,
            repeat=self.delivery == "idempotent",
            dead=TooLargeRows(self.dlq_topic) if self.on_too_large == "dlq" else None,
            compression=COMPRESSIONS.get(self.compression, 0),
            delayed_alone=self.delivery != EXACTLY,
            queues=queues,
            partition=partition,
        )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink, checked one by one and against each other. Raises UsageError."""
    asked = {name: text for name, text in given.items() if name.lower() not in SPARK_OPTIONS}
    options = parse(SinkOptions, asked, "sink").with_environment()
    split_addresses(options.endpoints)
    named = {name.lower() for name in given}
    for name, deliveries in NEEDED_DELIVERIES.items():
        if name.lower() in named and options.delivery not in deliveries:
            raise UsageError(f"{name} does nothing with delivery={options.delivery}; it needs delivery={' or '.join(deliveries)}")
    if options.batch_number and not options.transactional_id:
        raise UsageError("batchNumber needs transactionalId: a job without one gets another id at each run")
    if options.transactional_id.startswith(ONE_RUN):
        raise UsageError(f"transactionalId: ids that begin with {ONE_RUN} are those of jobs without one, and are forgotten")
    if compression := COMPRESSIONS.get(options.compression):
        compress(b"", compression, 1)  # raises where a package is missing: here, and not first in a task
    if (options.on_too_large == "dlq") != bool(options.dlq_topic):
        raise UsageError("onTooLarge=dlq and dlqTopic=TOPIC belong together")
    return options
