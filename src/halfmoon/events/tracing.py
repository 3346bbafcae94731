"""Trace of an event's way: a log line a step, and OpenTelemetry spans where that is installed. Decides nothing.

The lines go to the logger ``halfmoon.events``, one a step, each with every name of the event: ``published: event=… topic=… code=…
message=… group=… attempt=… decision=…``. Spans are named ``publish TP_ORDER`` and so on; how they are made, and how the
trace travels in a message, stands in `halfmoon.client.spans`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from halfmoon.client.spans import TRACEPARENT, TRACESTATE, attributes_of, carry, current_span, failed, parent_of, tracer
from halfmoon.events.event import Event
from halfmoon.logs import escaped
from halfmoon.model import StoredMessage

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["TRACEPARENT", "TRACESTATE", "carry", "failed", "span", "step", "trace_of"]

log = logging.getLogger("halfmoon.events")

_KINDS = {"publish": ("PRODUCER", "send"), "consume": ("CONSUMER", "process")}
"""The kind of a span, and its type in the conventions, by its name. Others are calls of a client."""

_NOTHING: AbstractContextManager[None] = nullcontext()


def step(
    name: str,
    event: Event,
    *,
    group: str = "",
    message_id: str = "",
    attempt: int = 0,
    decision: str = "",
    checks: int = 0,
    error: BaseException | str | None = None,
    level: int | None = None,
) -> None:
    """Write one line about a step of an event; what is empty is left out. The level is INFO, with an ``error`` WARNING.

    ``message_id`` is the broker's or the sender's id of the message, the event's own when it is not given; ``checks`` counts how
    often the broker has asked.
    """
    if level is None:
        level = logging.INFO if error is None else logging.WARNING
    if not log.isEnabledFor(level):
        return
    facts = {
        "event": event.id,
        "topic": event.topic,
        "code": event.code,
        "message": message_id or event.id,
        "group": group or event.group,
        "attempt": attempt,
        "checks": checks,
        "decision": decision,
        "error": _one_line(error) if error is not None else "",
    }
    text = " ".join(f"{key}={value}" for key, value in facts.items() if value)
    extra = {f"halfmoon_{key}": escaped(value) if isinstance(value, str) else value for key, value in facts.items()}
    log.log(level, "%s: %s", name, text, extra=extra)


def _one_line(error: BaseException | str) -> str:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    return line if len(line) <= 500 else f"{line[:500]} ... and {len(line) - 500} characters more"


# ---------------------------------------------------------------- spans


def span(
    name: str,
    event: Event,
    *,
    group: str = "",
    carrier: Mapping[str, str] | None = None,
    message: StoredMessage | None = None,
    attempt: int = 0,
) -> AbstractContextManager[Span | None]:
    """Return a block that is a span of the event, where OpenTelemetry records; else a block that does nothing.

    ``name`` is publish, prepare, decide, check or consume. ``carrier``, a message's properties, or ``message``: the span belongs to
    the trace that came with it. An exception that leaves the block is recorded.
    """
    if (recorder := tracer()) is None:
        return _NOTHING  # nobody records
    kind, operation = _KINDS.get(name, ("CLIENT", ""))
    facts = {
        "message.id": event.id,
        "message.body.size": None if message is None else len(message.body),
        "rocketmq.message.tag": event.code,
        "consumer.group.name" if name == "consume" else "rocketmq.client_group": group,
    }
    attributes = attributes_of(name, operation, event.topic, facts) | ({"halfmoon.attempt": attempt} if attempt else {})
    carrier = message.properties if message is not None else carrier
    parent = None if carrier is None else parent_of(carrier)
    return current_span(recorder, f"{name} {event.topic}", kind, attributes, parent)


def trace_of(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Return the trace that travels in a message's properties, as a `span` takes it; None for none."""
    if TRACEPARENT not in properties:
        return None
    return {name: properties[name] for name in (TRACEPARENT, TRACESTATE) if name in properties}
