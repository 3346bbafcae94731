"""Options of the source as one table: name, parser, default and description. Checks and the page of docs follow from it.

An unknown option raises `UsageError`, which names the nearest right one, but never the value: it may be a secret. For an option of
Spark's Kafka source the error names ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Self, TypeVar

from halfmoon.client.lifecycle import from_environment
from halfmoon.data.queue_offsets import QueueOffsets
from halfmoon.errors import UsageError
from halfmoon.model import split_addresses
from halfmoon.spark import option_parsing

T = TypeVar("T")

KAFKA_NAMES = {
    "kafka.bootstrap.servers": "endpoints, the addresses of the name servers",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "startingoffsetsbytimestamp": "startingTimestamp, one time for all queues",
    "startingoffsetsbytimestampstrategy": "startingTimestampStrategy",
    "endingoffsetsbytimestamp": "endingTimestamp, one time for all queues",
    "includeheaders": "includeProperties",
    "kafka.group.id": "consumerGroup",
    "kafka.enable.idempotence": "delivery",
    "kafka.transactional.id": "transactionalId",
    "kafka.batch.size": "batchBytes",
    "kafka.max.in.flight.requests.per.connection": "inFlight",
    "kafka.compression.type": "compression",
    "kafka.max.request.size": "messageBytes",
}
"""Names of Spark's Kafka source and sink, in small letters, and our equivalents."""


def option(
    default: Any = MISSING,
    *,
    parse: Callable[[str], Any],
    why: str,
    only: str = "",
    alias: str = "",
    secret: bool = False,
) -> Any:
    """Declare an option: parser and description (Markdown). ``only`` is ``batch`` or ``stream``; without a default it is required.

    A ``secret`` one appears in no text.
    """
    return field(default=default, repr=not secret, metadata={"parse": parse, "why": why, "only": only, "alias": alias})


@dataclass(frozen=True, kw_only=True)
class Signing:
    """Options of signing and encryption, of sources and sinks."""

    access_key: str = option(
        "",
        parse=option_parsing.text,
        why="The [account](access.md) that signs requests; by default that of `credentials`, else of the driver's environment.",
    )
    secret_key: str = option("", parse=option_parsing.text, secret=True, why="Its secret. No plan, log or checkpoint shows it.")
    security_token: str = option("", parse=option_parsing.text, secret=True, why="A token that some clouds want besides.")
    credentials: str = option(
        "",
        parse=option_parsing.text,
        why="In place of the three: a file with them, at the same path on the driver and all workers.",
    )
    use_tls: bool | None = option(
        None,
        parse=option_parsing.flag,
        why="[Encrypt](tls.md) all connections; by default `true` where another option of TLS is given, else as the driver's "
        "environment says.",
    )
    tls_ca: str = option(
        "",
        parse=option_parsing.text,
        why="CA certificates (PEM) that sign those of servers; by default the system's. Files of TLS lie at the same path on the "
        "driver and all workers.",
    )
    tls_cert: str = option("", parse=option_parsing.text, why="Certificate chain (PEM) to show to servers that ask for one.")
    tls_key: str = option("", parse=option_parsing.text, why="Its private key (PEM); by default in the same file.")
    tls_key_password: str = option(
        "", parse=str, secret=True, why="The password of an encrypted key. No plan, log or checkpoint shows it."
    )
    tls_verify: bool | None = option(
        None,
        parse=option_parsing.flag,
        why="`false`: accept any certificate of any host. Insecure: allows man-in-the-middle attacks.",
    )
    tls_server_name: str = option(
        "", parse=option_parsing.text, why="The name in every server's certificate, in place of its address."
    )

    @property
    def signing(self) -> dict[str, Any]:
        """The settings of a client for these options."""
        return {field.name: getattr(self, field.name) for field in fields(Signing)}

    def with_environment(self) -> Self:
        """Return these options with account and encryption from this process's environment, where none are given.

        The driver does this, because its workers have another environment. Raises SettingError.
        """
        return replace(self, **from_environment(self.signing))


@dataclass(frozen=True, kw_only=True)
class ClientOptions(Signing):
    """Options that sources and sinks hand to their clients."""

    endpoints: str = option(parse=option_parsing.text, alias="nameServer", why="Name servers: `host:port` joined by `;`.")
    namespace: str = option("", parse=option_parsing.text, why="Prefix of topics and groups on the wire.")
    request_timeout: int = option(30_000, parse=option_parsing.duration(100, 3_600_000), why="Longest wait for one reply.")
    retries: int = option(
        20,
        parse=option_parsing.count(0, 1_000),
        why="Further attempts, with pauses of more than a minute in total: a broker may be restarted.",
    )

    @property
    def client(self) -> dict[str, Any]:
        """These options as settings of a client, by name."""
        return {
            "nameserver": self.endpoints,
            "namespace": self.namespace,
            "request_timeout_ms": self.request_timeout,
            "retries_max": self.retries,
            **self.signing,
        }


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ClientOptions):
    """Options of a source. Times are in ms, sizes in bytes; None: not given."""

    topic: tuple[str, ...] = option(
        (), parse=option_parsing.names, why="Topics joined by `,`. Exactly one of this, `topicPattern` and `assign` is required."
    )
    topic_pattern: str = option("", parse=option_parsing.pattern, why="Topics whose whole name matches this regular expression.")
    assign: dict[str, dict[str, tuple[int, ...]]] | None = option(
        None, parse=option_parsing.queues, why="Only these queues: JSON topic → broker → [queue, …]."
    )
    starting_offsets: str | QueueOffsets | None = option(
        None,
        parse=option_parsing.position("earliest", "latest", "group"),
        why="`earliest` (default of a batch), `latest` (default of a stream; streams only), `group`, or JSON topic → broker → "
        "queue → offset for every queue.",
    )
    starting_timestamp: int | None = option(
        None,
        parse=option_parsing.moment,
        why="Instead of `startingOffsets`: begin with messages stored at this time, ISO 8601 with its time zone, or ms since the "
        "epoch.",
    )
    starting_timestamp_strategy: str = option(
        "error",
        parse=option_parsing.one_of("error", "latest"),
        why="For a queue that has no message that late: `error`, or `latest` to begin after its newest.",
    )
    ending_offsets: str | QueueOffsets = option(
        "latest",
        parse=option_parsing.position("latest"),
        only="batch",
        why="`latest`, or JSON topic → broker → queue → offset.",
    )
    ending_timestamp: int | None = option(
        None,
        parse=option_parsing.moment,
        only="batch",
        why="Instead of `endingOffsets`: messages stored at this time or later are not read.",
    )
    fail_on_data_loss: bool = option(
        True,
        parse=option_parsing.flag,
        why="`true`: messages that are gone before they were read, or whose broker is, are an error; `false`: they are counted in "
        "the log and skipped.",
    )
    max_offsets_per_trigger: int = option(
        1_000_000,
        parse=option_parsing.count(1, 1 << 40),
        only="stream",
        why="Most messages of one batch, shared among queues by their backlog; each queue with messages gives one at least.",
    )
    max_bytes_per_trigger: int = option(
        256 << 20,
        parse=option_parsing.size(1, 1 << 50),
        only="stream",
        why="Most bytes of one batch, estimated from a sample of message sizes.",
    )
    min_offsets_per_trigger: int = option(
        0, parse=option_parsing.count(0, 1 << 40), only="stream", why="Wait until there are this many messages."
    )
    max_trigger_delay: int = option(
        900_000,
        parse=option_parsing.duration(1, 7 * 86_400_000),
        only="stream",
        why="Longest wait for `minOffsetsPerTrigger`.",
    )
    min_partitions: int = option(
        0, parse=option_parsing.count(1, 100_000), why="Queues are split to get at least this many partitions."
    )
    max_partitions: int = option(
        0,
        parse=option_parsing.count(1, 100_000),
        why="Most partitions. By default as many as cores of a local session that `halfmoon.spark.session` started, else one "
        "for each queue; more where `minPartitions` or `maxRecordsPerPartition` ask for it, fewer for a small batch of a "
        "stream. Those of a batch have about equal bytes.",
    )
    max_records_per_partition: int = option(
        0, parse=option_parsing.count(1, 1 << 40), why="Queues are split at this many messages."
    )
    consumer_group: str = option(
        "",
        parse=option_parsing.text,
        why="The group whose progress `startingOffsets=group` reads. A stream also reports its progress there when a batch is "
        "done, for `halfmoon group lag` and other tools, and never reads it back.",
    )
    report_offsets: bool | None = option(
        None,
        parse=option_parsing.flag,
        only="stream",
        why="Report the progress to `consumerGroup`; by default `true` where a group is given.",
    )
    tags: str = option(
        "*",
        parse=option_parsing.text,
        why="Only messages with one of these [tags](filters.md), joined by `||`. Halfmoon brokers send only matching messages.",
    )
    sql_filter: str = option(
        "",
        parse=option_parsing.text,
        why="Instead of `tags`: an [SQL92 expression](filters.md). Halfmoon brokers send only matching messages.",
    )
    include_properties: bool = option(False, parse=option_parsing.flag, why="Add the column `properties`.")
    columns: tuple[str, ...] = option(
        (), parse=option_parsing.words, why="Only these columns, joined by `,`: fewer columns are faster."
    )
    half_messages: bool = option(
        False,
        parse=option_parsing.flag,
        why="Also read half messages and op records, as audits do, where the broker allows it (`half_messages_readable`).",
    )
    fetch_bytes: int = option(4 << 20, parse=option_parsing.size(1 << 10, 64 << 20), why="Most bytes of one reply of a broker.")
    read_from: str = option(
        "master",
        parse=option_parsing.place,
        why="`master`, or `files:/DIR` to read the store's files directly, see [below](#read-the-stores-files).",
    )
    emit: str = option(
        "messages",
        parse=option_parsing.one_of("messages", "ranges"),
        why="`ranges`: one row for each range of offsets instead of its messages.",
    )

    @property
    def loss_option(self) -> str:
        """The option that passes over lost messages, as users write it."""
        return "failOnDataLoss=false"


def parse(table: type[T], given: Mapping[str, str], use: str) -> T:
    """Return the options that a table reads from texts; names count without case.

    ``use`` is ``batch`` or ``stream``, or any other word for a table without such options.

    Raises:
        UsageError: an option is unknown, wrong, given under two names, missing, or not for this use.
    """
    known = {name.lower(): option for option in fields(table) for name in names_of(option)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, text in given.items():
        option = known.get(name.lower())
        if option is None:
            raise UsageError(f"there is no option {name}; {nearest(name, table)}")
        if option.metadata["only"] not in ("", use):
            raise UsageError(f"option {public(option.name)} is for a {option.metadata['only']} only")
        if option.name in values:
            raise UsageError(f"option {public(option.name)} is given twice, as {' and '.join(names_of(option))}")
        values[option.name] = _value(option, text)
    for option in fields(table):  # type: ignore[arg-type]
        if option.default is MISSING and option.name not in values:
            raise UsageError(f"option {public(option.name)} is needed: {option.metadata['why'].replace('`', '')}")
    return table(**values)


def _value(option: Field[Any], text: str) -> Any:
    try:
        return option.metadata["parse"](text)
    except ValueError as exc:
        shown = f"={text[:200]!r}" if option.repr else ""  # a secret is shown in no text
        raise UsageError(f"option {public(option.name)}{shown} {exc}") from None


def nearest(name: str, table: Any) -> str:
    """Return the end of a sentence that names the option nearest to a name, or all options."""
    if ours := KAFKA_NAMES.get(name.lower()):
        return f"Kafka's {name} is {ours}"
    if name.lower().startswith("kafka."):
        return f"there is no equivalent of Kafka's {name}"
    names = {name.lower(): name for option in fields(table) for name in names_of(option)}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(sorted(names.values()))}"


def public(name: str) -> str:
    """Return an option's public name: ``fetchBytes`` for ``fetch_bytes``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def names_of(option: Field[Any]) -> list[str]:
    """Return the public names of an option."""
    return [public(option.name), *([option.metadata["alias"]] if option.metadata["alias"] else [])]


def source_options(given: Mapping[str, str], use: str) -> SourceOptions:
    """Return the options of a source, checked one by one and against each other; ``use`` is ``batch`` or ``stream``.

    Raises:
        UsageError: an option is wrong; the text says what to do.
    """
    options = parse(SourceOptions, given, use).with_environment()
    split_addresses(options.endpoints)
    _check_topics(options)
    _check_offsets(options, use)
    if options.tags != "*" and options.sql_filter:
        raise UsageError("tags and sqlFilter exclude each other; an SQL expression may use TAGS")
    if options.max_partitions and options.min_partitions > options.max_partitions:
        raise UsageError(f"minPartitions={options.min_partitions} is more than maxPartitions={options.max_partitions}")
    return options


def _check_topics(options: SourceOptions) -> None:
    given = [public(name) for name in ("topic", "topic_pattern", "assign") if getattr(options, name)]
    if len(given) != 1:
        raise UsageError(f"give exactly one of topic, topicPattern and assign; {' and '.join(given) or 'none'} given")


def _check_offsets(options: SourceOptions, use: str) -> None:
    if options.starting_timestamp is not None and options.starting_offsets is not None:
        raise UsageError("startingOffsets and startingTimestamp exclude each other")
    if options.ending_timestamp is not None and options.ending_offsets != "latest":
        raise UsageError("endingOffsets and endingTimestamp exclude each other")
    if use == "batch" and options.starting_offsets == "latest":
        raise UsageError("startingOffsets=latest leaves a batch nothing to read; use earliest, group, offsets or startingTimestamp")
    if not options.consumer_group and (options.report_offsets or options.starting_offsets == "group"):
        raise UsageError("startingOffsets=group and reportOffsets need consumerGroup")
