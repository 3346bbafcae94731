"""Settings of producers, consumers and administration clients, with RocketMQ's own keys and reasons. Checks values only."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from halfmoon.documentation import see
from halfmoon.errors import SettingError, UsageError
from halfmoon.limits import RECONSUME_MAX
from halfmoon.model import ConsumeFrom, MessageModel, split_addresses
from halfmoon.settings import check, forms, setting, value_of

S = TypeVar("S", bound="ClientSettings")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings of every client. Defaults follow ClientConfig (RocketMQ 4.9.8) unless a reason says otherwise."""

    nameserver: str = setting(
        "",
        java="namesrvAddr",
        form=forms.ADDRESSES,
        why="Name servers, host:port separated by ';'; empty: the variable HALFMOON_NAMESERVER, else NAMESRV_ADDR.",
    )
    client_ip: str = setting(
        "",
        java="clientIP",
        form=forms.PART,
        why="Address in client and message ids; empty: that of the interface to the name server.",
    )
    instance_name: str = setting(
        "DEFAULT", java="instanceName", form=forms.PART, why="Part of the client id; DEFAULT becomes a name of this process."
    )
    unit_name: str = setting("", java="unitName", form=forms.PART, why="Unit of the client, part of its id.")
    namespace: str = setting(
        "", java="namespace", form=forms.NAMESPACE, why="Prefix of topics and groups on the wire; your code never sees it."
    )
    serialization: str = setting(
        "JSON",
        java="rocketmq.serialize.type",
        choices=("JSON", "ROCKETMQ"),
        why="Encoding of request headers; every broker reads JSON.",
    )
    access_key: str = setting(
        "", form=forms.KEY, why=f"Account that signs requests; empty: the variable HALFMOON_ACCESS_KEY (see {see('access')})."
    )
    secret_key: str = setting("", form=forms.KEY, secret=True, why="Its secret; empty: the variable HALFMOON_SECRET_KEY.")
    security_token: str = setting(
        "", form=forms.KEY, secret=True, why="Token that some clouds want besides; empty: HALFMOON_SECURITY_TOKEN."
    )
    credentials: str = setting(
        "", form=forms.PATH, why="File with accessKey and secretKey, in their place; empty: the variable HALFMOON_CREDENTIALS."
    )
    vip_channel: bool = setting(False, java="vipChannelEnabled", why="Send to the broker's second port, which is two lower.")
    route_refresh_ms: int = setting(30_000, java="pollNameServerInterval", why="Interval between refreshes of routes.", low=10)
    heartbeat_ms: int = setting(30_000, java="heartbeatBrokerInterval", why="Brokers forget clients after 120 s.", low=10)
    persist_offsets_ms: int = setting(5_000, java="persistConsumerOffsetInterval", why="Interval between offset commits.", low=10)
    request_timeout_ms: int = setting(
        3_000, java="mqClientApiTimeout", why="Timeout of requests to name servers and of small requests to brokers.", low=1
    )
    use_tls: bool | None = setting(
        None,
        java="useTLS",
        why="Encrypt all connections; not given: true where another TLS setting is, else HALFMOON_TLS says, as HALFMOON_TLS_CA for"
        " tls_ca …, else false.",
    )
    tls_ca: str = setting(
        "",
        java="tls.client.trustCertPath",
        form=forms.PATH,
        why="CA certificates (PEM) that sign those of servers; empty: the system's.",
    )
    tls_cert: str = setting(
        "", java="tls.client.certPath", form=forms.PATH, why="Certificate chain (PEM) to show to servers that ask for one."
    )
    tls_key: str = setting("", java="tls.client.keyPath", form=forms.PATH, why="Its private key (PEM); empty: in the same file.")
    tls_key_password: str = setting(
        "", java="tls.client.keyPassword", form=forms.PASSWORD, secret=True, why="Password of an encrypted key."
    )
    tls_verify: bool | None = setting(
        None,
        java="tls.client.authServer",
        why="Verify certificates and the host that they stand for; not given: HALFMOON_TLS_VERIFY, else true (RocketMQ: false).",
    )
    tls_server_name: str = setting(
        "",
        form=forms.HOST,
        why="Name in every server's certificate; empty: the host of its address. Brokers are known by IP addresses.",
    )


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """Settings of a producer. Defaults follow DefaultMQProducer (RocketMQ 4.7.1)."""

    group: str = setting("", java="producerGroup", why="Producer group; transactions need it, and operators see it.")
    create_topic_key: str = setting(
        "TBW102", java="createTopicKey", form=forms.TOPIC, why="Topic whose route is used for topics that do not exist yet."
    )
    default_topic_queue_count: int = setting(4, java="defaultTopicQueueNums", why="Queues of a topic that a send creates.", low=1)
    send_timeout_ms: int = setting(3_000, java="sendMsgTimeout", why="Timeout of one send, retries included.", low=1)
    compress_over_bytes: int = setting(
        4_096, java="compressMsgBodyOverHowmuch", why="Bodies of this size or more are compressed.", low=0
    )
    compress_level: int = setting(5, java="rocketmq.message.compressLevel", why="zlib level.", low=0, high=9)
    compress_type: str = setting(
        "ZLIB",
        java="rocketmq.message.compressType",
        choices=("ZLIB", "LZ4", "ZSTD"),
        why="ZLIB is read by every version; LZ4, ZSTD by 4.9+.",
    )
    linger_ms: int = setting(0, why="Time that a send may wait for others to join it in one batch; 0: none.", low=0, high=10_000)
    retries_max: int = setting(2, java="retryTimesWhenSendFailed", why="Retries of a send that the caller waits for.", low=0)
    retries_async_max: int = setting(2, java="retryTimesWhenSendAsyncFailed", why="Retries of an asynchronous send.", low=0)
    retry_not_stored: bool = setting(
        False,
        java="retryAnotherBrokerWhenNotStoreOK",
        why="Also retry a message that was stored, but not flushed or replicated in time.",
    )
    retry_codes: tuple[int, ...] = setting(
        (1, 2, 14, 16, 17, 204, 205, 1500),
        java="retryResponseCodes",
        why="Codes after which another broker is tried: those of 4.x, and 2 and 1500 of 5.x, after which nothing was stored.",
    )
    body_bytes_max: int = setting(4_194_304, java="maxMessageSize", why="Largest body; brokers have the same limit.", low=1)
    latency_avoidance: bool = setting(False, java="sendLatencyFaultEnable", why="Avoid slow and failing brokers for a while.")
    spans: bool = setting(True, why="Make an OpenTelemetry span of every send, where a tracer provider is set.")
    trace: bool = setting(False, java="enableMsgTrace", why="Record every send and second phase in the trace topic.")
    trace_topic: str = setting(
        "RMQ_SYS_TRACE_TOPIC", java="customizedTraceTopic", form=forms.TOPIC, why="The trace topic; it must exist."
    )


@dataclass(frozen=True, kw_only=True)
class TransactionSettings(ProducerSettings):
    """Settings of a transactional producer. Defaults follow TransactionMQProducer (RocketMQ 4.7.1)."""

    check_threads: int = setting(
        1, java="checkThreadPoolMaxSize", why="Transaction checks answered concurrently.", low=1, high=1_000
    )
    check_hold_max: int = setting(
        2_000,
        java="checkRequestHoldMax",
        why="Checks that may wait; further ones are dropped, and the broker asks again.",
        low=1,
        high=1_000_000,
    )


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """Settings that all consumers share. Defaults follow DefaultMQPushConsumer (RocketMQ 4.9.8)."""

    group: str = setting("", java="consumerGroup", why="Consumer group; its members share the messages.")
    model: MessageModel = setting(
        MessageModel.CLUSTERING, java="messageModel", why="CLUSTERING: members share the messages; BROADCASTING: each gets all."
    )
    consume_from: ConsumeFrom = setting(
        ConsumeFrom.LAST_OFFSET, java="consumeFromWhere", why="Where a group without committed offsets begins."
    )
    consume_timestamp_ms: int = setting(
        0, java="consumeTimestamp", why="For TIMESTAMP, ms since the epoch; 0: half an hour before the start.", low=0
    )
    allocation: str = setting(
        "AVG",
        java="allocateMessageQueueStrategy",
        choices=("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"),
        why="Strategy that allocates queues to members.",
    )
    rebalance_ms: int = setting(
        20_000, java="rocketmq.client.rebalance.waitInterval", why="Interval between checks of the allocation.", low=10
    )
    batch_max: int = setting(32, java="pullBatchSize", why="Messages per pull.", low=1, high=1024)
    cached_max: int = setting(1_000, java="pullThresholdForQueue", why="Messages of one queue held in memory.", low=1, high=65_535)
    cached_bytes_max: int = setting(
        100 * 1024 * 1024, java="pullThresholdSizeForQueue", why="Bytes of one queue held in memory.", low=1, high=1024**3
    )
    span_max: int = setting(
        2_000,
        java="consumeConcurrentlyMaxSpan",
        why="Largest distance from the oldest to the newest offset held.",
        low=1,
        high=65_535,
    )
    suspend_ms: int = setting(
        15_000, java="brokerSuspendMaxTimeMillis", why="Time for which the broker may hold a pull.", low=0, high=120_000
    )
    pull_timeout_ms: int = setting(
        30_000, java="consumerTimeoutMillisWhenSuspend", why="Timeout of a pull; must exceed suspend_ms by 10 s.", low=100
    )
    offsets_dir: str = setting(
        "", java="rocketmq.client.localOffsetStoreDir", form=forms.PATH, why="For broadcasting; empty: ~/.rocketmq_offsets."
    )


@dataclass(frozen=True, kw_only=True)
class PushSettings(ConsumerSettings):
    """Settings of a consumer that is handed its messages."""

    threads: int = setting(20, java="consumeThreadMax", why="Concurrent calls of the listener.", low=1, high=1_000)
    consume_batch_max: int = setting(
        1, java="consumeMessageBatchMaxSize", why="Messages per call of the listener.", low=1, high=1_024
    )
    orderly: bool = setting(False, why="Keep the order of each queue: one owner, one call at a time, and a failure stops it.")
    suspend_queue_ms: int = setting(
        1_000, java="suspendCurrentQueueTimeMillis", why="Pause of an orderly queue after a failure.", low=10, high=30_000
    )
    lock_renew_ms: int = setting(
        20_000,
        java="rocketmq.client.rebalance.lockInterval",
        why="Interval between renewals of orderly queues' locks.",
        low=10,
    )
    lock_valid_ms: int = setting(
        30_000, java="rocketmq.client.rebalance.lockMaxLiveTime", why="A lock that was not renewed for this long is lost.", low=10
    )
    reconsume_max: int = setting(
        -1, java="maxReconsumeTimes", why="Redeliveries before the dead-letter topic; -1: 16, or unlimited when orderly.", low=-1
    )
    cached_topic_max: int = setting(
        -1, java="pullThresholdForTopic", why="Messages of one topic in memory, divided among its queues; -1: no limit.", low=-1,
        high=6_553_500,
    )  # fmt: skip
    cached_topic_bytes_max: int = setting(
        -1, java="pullThresholdSizeForTopic", why="Bytes of one topic in memory, divided among its queues; -1: no limit.", low=-1,
        high=100 * 1024**3,
    )  # fmt: skip
    consume_timeout_ms: int = setting(
        900_000, java="consumeTimeout", why="A message that the listener holds longer is sent back for redelivery.", low=1_000
    )
    pull_interval_ms: int = setting(0, java="pullInterval", why="Pause between pulls of one queue.", low=0, high=65_535)
    pull_pause_ms: int = setting(3_000, java="pullTimeDelayMillsWhenException", why="Pause after a failed pull.", low=1)
    spans: bool = setting(True, why="Make an OpenTelemetry span of every listener call, where a tracer provider is set.")
    trace: bool = setting(False, java="enableMsgTrace", why="Record every call of the listener in the trace topic.")
    trace_topic: str = setting(
        "RMQ_SYS_TRACE_TOPIC", java="customizedTraceTopic", form=forms.TOPIC, why="The trace topic; it must exist."
    )
    post_subscription: bool = setting(False, java="postSubscriptionWhenPull", why="Send the expression with each pull.")
    close_wait_ms: int = setting(
        3_000,
        java="awaitTerminationMillisWhenShutdown",
        why="Time that closing waits for running calls, so that their offsets are committed.",
        low=0,
    )

    @property
    def redeliveries(self) -> int:
        """``reconsume_max`` as a number, where messages come in no order."""
        return RECONSUME_MAX if self.reconsume_max < 0 else self.reconsume_max


@dataclass(frozen=True, kw_only=True)
class PullSettings(ConsumerSettings):
    """Settings of a consumer that asks for its messages. Defaults follow DefaultLitePullConsumer (RocketMQ 4.9.8)."""

    batch_max: int = setting(10, java="pullBatchSize", why="Messages per poll; above 32 also per pull.", low=1, high=1024)
    suspend_ms: int = setting(
        20_000, java="brokerSuspendMaxTimeMillis", why="Time for which the broker may hold a pull.", low=0, high=120_000
    )
    cached_total_max: int = setting(10_000, java="pullThresholdForAll", why="Messages of all queues held in memory.", low=1)
    auto_commit: bool = setting(True, java="autoCommit", why="A poll commits what earlier polls returned.")
    auto_commit_ms: int = setting(5_000, java="autoCommitIntervalMillis", why="Interval between commits by polls.", low=1)
    queues_check_ms: int = setting(
        30_000, java="topicMetadataCheckIntervalMillis", why="Interval between checks of the queues, for on_queues_changed.", low=10
    )
    poll_timeout_ms: int = setting(5_000, java="pollTimeoutMillis", why="Default timeout of a poll.", low=0)
    pull_pause_ms: int = setting(1_000, java="pullTimeDelayMillsWhenException", why="Pause after a failed pull.", low=1)


@dataclass(frozen=True, kw_only=True)
class AdminSettings(ClientSettings):
    """Settings of an administration client."""

    request_timeout_ms: int = setting(
        5_000, java="mqClientApiTimeout", why="Timeout of a request; follows DefaultMQAdminExt.", low=1
    )
    signed_addresses: str = setting(
        "",
        form=forms.ADDRESSES,
        why="Servers to which requests are signed; empty: all. Others, which a name server may name, are asked without an account.",
    )


_TLS = ("tls_ca", "tls_cert", "tls_key", "tls_key_password", "tls_verify", "tls_server_name")
ENVIRONMENT = {"HALFMOON_TLS": "use_tls", **{f"HALFMOON_{name.upper()}": name for name in _TLS}}
"""Variable → the setting that it stands for, where that was not given."""


def with_environment(settings: S, environment: Mapping[str, str]) -> S:
    """Return settings in which the variables of `ENVIRONMENT` stand for what was not given, which is None or an empty text.

    A given setting of `_TLS` that asks for something switches TLS on, unless ``use_tls`` says otherwise: who names an authority
    wants no plain text. What nothing says is as if TLS was off and certificates were verified. Raises SettingError.
    """
    found = {name: getattr(settings, name) for name in ENVIRONMENT.values()}
    if found["use_tls"] is None and any(found[name] not in (None, "", True) for name in _TLS):
        found["use_tls"] = True
    for variable, name in ENVIRONMENT.items():
        if found[name] in (None, "") and (text := environment.get(variable)):
            found[name] = value_of(type(settings), name, text, variable)
    found["use_tls"], found["tls_verify"] = found["use_tls"] is True, found["tls_verify"] is not False
    return replace(settings, **found)


def settings_of(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return checked settings from keyword arguments. Raises SettingError, which names the setting and the nearest right one.

    A setting by RocketMQ's key, in whatever spelling (``sendMsgTimeout``, ``send_msg_timeout``), is told by our name, too.
    """
    known = {field.name: _letters(field.metadata["java"] or "") for field in fields(cls)}  # type: ignore[arg-type]  # a dataclass
    for name in values:
        if name not in known:
            near = [ours for ours, java in known.items() if java == _letters(name)] or difflib.get_close_matches(name, known, 1)
            raise SettingError(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return check(cls(**_normal(values)))


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def _normal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with name servers as plain addresses, the namespace that their names may carry, and codes as a tuple."""
    changes: dict[str, Any] = {}
    servers = values.get("nameserver")
    texts = servers.replace(",", ";").split(";") if isinstance(servers, str) else servers
    if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
        plain = [text.strip().removeprefix("http://").removeprefix("https://").rstrip("/") for text in texts if text.strip()]
        try:
            changes["nameserver"] = ";".join(split_addresses(plain))
        except UsageError as exc:
            raise SettingError(f"nameserver: {exc} (an example: 127.0.0.1:9876)") from None
        if not values.get("namespace") and plain and plain[0].startswith("MQ_INST_") and plain[0] != texts[0].strip():
            changes["namespace"] = plain[0].split(".")[0]
    if isinstance(codes := values.get("retry_codes"), list | set | frozenset):
        changes["retry_codes"] = tuple(codes)
    return {**values, **changes}
