"""Options that several commands share, and how their values are parsed. Asks no server."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

NameServer = Annotated[
    str,
    typer.Option(
        "--nameserver", "-n", envvar="NAMESRV_ADDR", metavar="ADDRESSES", help="Name servers, host:port separated by ';'."
    ),
]
LOCAL = "127.0.0.1:9876"
"""Where `halfmoon serve` puts its name server."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cluster = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Only the brokers of this cluster.")]
Topic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.")]
All = Annotated[bool, typer.Option("--all", "-a", help="Include system ones.")]

_AGE = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
TIME_FORMS = "an age (10s, 5m, 2h, 3d), ISO 8601 (2026-01-31T08:00:00Z), or ms since the epoch"


def time_ms(text: str) -> int:
    """Return milliseconds since the epoch for an age (``5m`` ago), an ISO 8601 time (UTC unless it says otherwise) or a number.

    Raises:
        typer.BadParameter: it is none of them.
    """
    if age := _AGE.fullmatch(text.strip()):
        return max(0, time.time_ns() // 1_000_000 - int(age[1]) * _UNITS_MS[age[2]])
    if text.strip().isdigit() and len(text) <= 15:
        return int(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: give {TIME_FORMS}") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def age_ms(text: str) -> int:
    """Return milliseconds for a duration (``300ms``, ``10s``, ``5m``, ``2h``, ``3d``). Raises typer.BadParameter."""
    age = _AGE.fullmatch(text.strip())
    if age is None:
        raise typer.BadParameter(f"{text!r} is not a duration (examples: 10s, 5m, 2h, 3d)")
    return int(age[1]) * _UNITS_MS[age[2]]


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """Return ``name=value`` texts as a dict. Raises typer.BadParameter."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} {text}: must be of the form name=value")
        values[name] = value
    return values


SYSTEM_TOPICS = frozenset(
    {
        *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    }
)
"""Topics that every broker has. Follows TopicValidator (RocketMQ 4.9.8)."""

SYSTEM_GROUPS = frozenset(
    {
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER"),
        *("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"),
    }
)
"""Groups that every broker has. Follows SubscriptionGroupManager.init (RocketMQ 4.9.8)."""


def is_users_topic(name: str) -> bool:
    """Whether a topic is one of the users', not of the protocol. Topics named after brokers and clusters look like users'."""
    return (
        name not in SYSTEM_TOPICS
        and not name.startswith(("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_"))
        and not name.endswith("_REPLY_TOPIC")
    )


def is_users_group(name: str) -> bool:
    """Whether a consumer group is one of the users', not of the protocol."""
    return name not in SYSTEM_GROUPS and not name.startswith("CID_RMQ_SYS_")
