"""Bodies about topics and their brokers: configuration, routes, clusters, registration. Holds shapes; decides nothing.

Includes the shapes of ``topics.json``. `halfmoon.wire.bodies` gives all of these names.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, cast
from zlib import compress

import msgspec

from halfmoon.conversion import convert
from halfmoon.errors import BadMessage
from halfmoon.limits import ADDRESS_LENGTH_MAX, FRAME_BYTES_MAX, NAME_LENGTH_MAX, ROUTE_BROKERS_MAX, ROUTE_QUEUES_MAX
from halfmoon.wire.compression import inflate
from halfmoon.wire.json import OBJECTS_MAX, REGISTRATION, REQUEST, BadBody, Body, Buffer, from_json, to_json
from halfmoon.wire.table import I32, I64


class DataVersion(msgspec.Struct, rename="camel", frozen=True):
    """Version of a table, raised with each change."""

    counter: I64 = 0
    timestamp: I64 = 0
    """Time of the last change, ms."""
    state_version: I64 | None = None
    """5.x."""

    def next(self, now: int) -> DataVersion:
        """Return the version after one more change."""
        return DataVersion(self.counter + 1, now, self.state_version)


class TopicConfig(Body, gc=False):
    """Topic at one broker. ``perm`` are bits of `halfmoon.wire.codes.Perm`, ``topic_filter_type`` SINGLE_TAG or MULTI_TAG."""

    topic_name: str = ""
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: dict[str, str] | None = None
    """5.x."""
    birth_ms: I64 | None = None
    """Halfmoon's: creation time of the topic at this broker, ms; None: unknown. A recreated topic has another one."""
    birth_offset: I64 | None = None
    """Halfmoon's: end of the broker's log at that time. Earlier records with this topic belong to a deleted topic of that name."""


class TopicConfigList(Body):
    """Topics to create or change: body of 18."""

    topic_config_list: list[TopicConfig] = []


class TopicConfigTable(Body):
    """All topics of a broker: reply of 21, part of 103, and ``topics.json``."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


# ---------------------------------------------------------------- routes


class QueueData(Body):
    """Queues of a topic at one broker name."""

    broker_name: str = ""
    read_queue_nums: I32 = 0
    write_queue_nums: I32 = 0
    perm: I32 = 0
    topic_sys_flag: I32 = 0
    topic_syn_flag: I32 = 0
    """``topic_sys_flag`` under its name in 4.7.1 and in the Go client; both are written, either is read."""

    def __post_init__(self) -> None:
        _check_length("broker name", self.broker_name, NAME_LENGTH_MAX)
        self.topic_sys_flag = self.topic_syn_flag = self.topic_sys_flag or self.topic_syn_flag


class BrokerData(Body):
    """Members of a broker name: id (0: master) and address."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool | None = None
    """5.x; the Rust client reads no broker without it."""
    zone_name: str | None = None
    """5.x."""

    def __post_init__(self) -> None:
        _check_length("cluster name", self.cluster, NAME_LENGTH_MAX)
        _check_length("broker name", self.broker_name, NAME_LENGTH_MAX)
        _check_count("members of a broker", len(self.broker_addrs), ROUTE_BROKERS_MAX)
        for address in self.broker_addrs.values():
            _check_length("address", address, ADDRESS_LENGTH_MAX)


class TopicRouteData(Body):
    """Brokers of a topic: reply of 105. Bodies with more brokers or queues than `halfmoon.limits` allows are refused."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    """``broker:queues`` joined by ``;``, for ordered topics."""
    topic_queue_mapping_by_broker: dict[str, Any] | None = None
    """5.x static topics; passed on, not understood."""
    absent_brokers: list[str] | None = None
    """Halfmoon's, on request: brokers that left with queues of the topic."""

    def __post_init__(self) -> None:
        _check_count("brokers of a route", max(len(self.broker_datas), len(self.queue_datas)), ROUTE_BROKERS_MAX)
        ordered = (number for _, number in ordered_queues(self.order_topic_conf or ""))
        counts = [max(0, data.read_queue_nums, data.write_queue_nums) for data in self.queue_datas]
        _check_count("queues of a route", max(sum(counts), sum(ordered)), ROUTE_QUEUES_MAX)


def ordered_queues(configuration: str) -> list[tuple[str, int]]:
    """Return the brokers of an ordered topic, each with its queues, from ``broker:queues;…``."""
    entries = (entry.partition(":") for entry in configuration.split(";"))
    return [(name, int(number[:10])) for name, _, number in entries if number.isascii() and number.isdigit()]


def _check_length(what: str, text: str, length_max: int) -> None:
    if len(text) > length_max:
        raise ValueError(f"{what} of {len(text)} characters, more than {length_max}: {text[:40]}…")


def _check_count(what: str, count: int, count_max: int) -> None:
    if count > count_max:
        raise ValueError(f"{count} {what}, more than {count_max}")


class ClusterInfo(Body):
    """All brokers by cluster: reply of 106."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(Body):
    """Names of topics. In the reply of 304, ``broker_addr`` is the address of any broker."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class KVTable(Body):
    """Names and text values."""

    table: dict[str, str] = {}


# ---------------------------------------------------------------- registration


class RegisterBrokerBody(Body):
    """Registration of a broker: body of 103."""

    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = []


_I32 = Struct(">i")


def encode_register_body(body: RegisterBrokerBody, *, compressed: bool = False, table_text: bytes | None = None) -> bytes:
    """Return a registration as JSON or, ``compressed``, as the deflated form that the header's flag announces.

    ``table_text`` is the JSON of its topics, if already encoded.
    Deflated: a zlib stream (level 9) of data version, count and topics, filter servers, each as ``| length i32 | text |``.
    """
    if not compressed and table_text is not None:
        servers = to_json(body.filter_server_list)
        return b'{"filterServerList":%s,"topicConfigSerializeWrapper":%s}' % (servers, table_text)
    if not compressed:
        return to_json(body)
    table = body.topic_config_serialize_wrapper
    texts = [to_json(table.data_version)]
    texts += (_topic_text(name, topic) for name, topic in table.topic_config_table.items())
    texts.append(to_json(body.filter_server_list))
    blocks = [_I32.pack(len(text)) + text for text in texts]
    blocks.insert(1, _I32.pack(len(table.topic_config_table)))
    return compress(b"".join(blocks), 9)


def decode_register_body(data: Buffer, *, compressed: bool = False, size_max: int = FRAME_BYTES_MAX) -> RegisterBrokerBody:
    """Return a registration; an empty body registers nothing. Fields that 5.x adds after the filter servers are ignored.

    Raises:
        BadBody: not a registration, more than ``size_max`` bytes once inflated, or more topics than `OBJECTS_MAX`.
    """
    if not data:
        return RegisterBrokerBody()
    if not compressed:
        return from_json(RegisterBrokerBody, data, bounds=REGISTRATION)
    try:
        raw = inflate(data, size_max)
        version, at = _text(raw, 0)
        (count,) = _I32.unpack_from(raw, at)
        at += 4
        if not 0 <= count <= OBJECTS_MAX:
            raise BadBody(f"a registration of {count} topics")
        topics: dict[str, TopicConfig] = {}
        for _ in range(count):
            text, at = _text(raw, at)
            topic = _topic(text)
            topics[topic.topic_name] = topic
        servers, at = _text(raw, at)
    except (BadMessage, struct_error, UnicodeDecodeError) as exc:
        raise BadBody(f"not a deflated registration: {exc}") from None
    wrapper = TopicConfigTable(from_json(DataVersion, version, bounds=REQUEST), topics)
    return RegisterBrokerBody(wrapper, from_json(list[str], servers, bounds=REQUEST) if servers else [])


def _text(raw: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _I32.unpack_from(raw, at)
    end = at + 4 + size
    if size < 0 or end > len(raw):
        raise BadBody("a length of a registration reaches beyond it")
    return raw[at + 4 : end], end


def _topic_text(name: str, topic: TopicConfig) -> bytes:
    numbers = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
    text = f"{name} {numbers} {topic.topic_filter_type}".encode()
    return text if topic.attributes is None else text + b" " + to_json(topic.attributes)


def _topic(text: bytes) -> TopicConfig:
    words = text.decode().split(" ", 5)
    if len(words) < 5:
        raise BadBody("a topic of a registration has fewer than five words")
    values: dict[str, Any] = dict(
        zip(("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType"), words, strict=False)
    )
    if len(words) == 6 and words[5]:
        values["attributes"] = from_json(dict[str, str], words[5].encode(), bounds=REQUEST)
    try:
        return cast(TopicConfig, convert(values, TopicConfig, strict=False))
    except msgspec.ValidationError as exc:
        raise BadBody(f"a topic of a registration: {exc}") from None
