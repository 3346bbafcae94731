"""Bounds of Halfmoon that are not settings, each with its reason. Holds numbers only."""

from __future__ import annotations

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a frame, its four length bytes included. Follows com.rocketmq.remoting.frameMaxLength."""

HEADER_BYTES_MAX = 1024 * 1024
"""Bytes of a frame's header. Properties end at 32 KiB, six times that when JSON escapes every byte; the rest is room."""

HEADER_FIELDS_MAX = 1024
"""Fields of one header. The largest request of the protocol has under 30."""

PARTIAL_BYTES_MAX = 48 * 1024 * 1024
"""Bytes of unfinished frames over all connections of a server; beyond it the connection that grows is closed."""

TOPIC_LENGTH_MAX = 127
"""A stored record keeps the topic's length in one signed byte."""

GROUP_LENGTH_MAX = 255
"""Follows Validators.CHARACTER_MAX_LENGTH."""

NAME_LENGTH_MAX = 255
"""Name of a broker, a cluster or a topic in a name server's tables; topics of RocketMQ 5.x may be longer than ours."""

ADDRESS_LENGTH_MAX = 300
"""A host name has 253 characters at most, and a port six with its colon."""

ROUTE_BROKERS_MAX = 1_000
"""Brokers of one topic, and members of one broker. Clusters have some dozens."""

ROUTE_QUEUES_MAX = 65_536
"""Queues of one topic, over all its brokers: 10 MB in each client. Topics have some hundreds."""

LEASE_RECORD_BYTES_MAX = 64 * 1024
"""Record of a lease, JSON. One has some hundred bytes; Kubernetes allows 256 KiB of annotations, etcd 1.5 MiB."""

CERTIFICATE_NAMES_MAX = 100
"""Names that count of a client's certificate, the first ones. Most certificates have one or two."""

CERTIFICATE_NAME_MAX = 1024
"""Characters of such a name; a longer one is ignored."""

PROPERTIES_BYTES_MAX = 32767
"""A stored record keeps the length of its properties in a signed short."""

PROPERTIES_SENT_MAX = 32_000
"""Bytes of properties that our senders allow: the rest is room for properties that a broker adds when it delays, redelivers or
dead-letters the message."""

BODY_BYTES_MAX = 4 * 1024 * 1024
"""Default of maxMessageSize, for senders and brokers."""

CONNECTION_IDLE_MS = 120_000
"""Silence after which both sides close a connection."""

RECONSUME_MAX = 16
"""Redeliveries before the dead letters, by default. Follows maxReconsumeTimes."""

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""Delays of the levels unless a broker says otherwise. Follows MessageStoreConfig.messageDelayLevel (RocketMQ 4.9.8)."""

STUCK_MS = 60_000
"""How long the progress of a group may stand still in a queue where messages wait, by default: longer than most listeners take."""

REASON_LENGTH_MAX = 512
"""Characters kept of the reason why a message could not be consumed: the name and the text of an error."""
