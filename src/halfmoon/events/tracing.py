"""What is written down of an event's way: a log line a step, and OpenTelemetry spans where that is installed. Decides nothing.

The lines go to the logger ``halfmoon.events``, one a step, each with every name of the event: ``published: event=… topic=… code=…
message=… group=… attempt=… decision=…``. Spans are named ``halfmoon publish TP_ORDER`` and so on; the trace travels in the
message's properties ``traceparent`` and ``tracestate`` (W3C Trace Context), so that the consumer's span belongs to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from halfmoon.events.event import Event
from halfmoon.logs import escaped

try:
    from opentelemetry import context as _context
    from opentelemetry import trace as _trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator as _Propagator
except ImportError:  # an extra: halfmoon[opentelemetry]
    _installed = False
else:
    _installed = True

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

log = logging.getLogger("halfmoon.events")

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

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
    level: int = logging.INFO,
) -> None:
    """Write one line about a step of an event; what is empty is left out, an ``error`` makes it a warning at least.

    ``message_id`` is the broker's or the sender's id of the message, the event's own when it is not given; ``checks`` counts how
    often the broker has asked.
    """
    level = level if error is None else max(level, logging.WARNING)
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
    name: str, event: Event, *, group: str = "", carrier: Mapping[str, str] | None = None, attempt: int = 0
) -> AbstractContextManager[Span | None]:
    """Return a block that is a span of the event, where OpenTelemetry records; else a block that does nothing.

    ``name`` is publish, prepare, decide, check or consume. ``carrier``, a message's properties: the span belongs to the trace that
    came with it. An exception that leaves the block is recorded.
    """
    if not _installed or isinstance(provider := _trace.get_tracer_provider(), _trace.ProxyTracerProvider):
        return _NOTHING  # nobody records
    return _span(provider, name, event, group, carrier, attempt)


@contextmanager
def _span(
    provider: TracerProvider, name: str, event: Event, group: str, carrier: Mapping[str, str] | None, attempt: int
) -> Iterator[Span]:
    parent = _Propagator().extract(carrier) if carrier is not None and TRACEPARENT in carrier else None
    facts: dict[str, Any] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.destination.name": event.topic,
        "messaging.message.id": event.id,
        "messaging.rocketmq.message.tag": event.code,
    }
    if group:
        facts["messaging.consumer.group.name" if name == "consume" else "messaging.rocketmq.client_group"] = group
    if attempt:
        facts["halfmoon.attempt"] = attempt
    kind = {"publish": _trace.SpanKind.PRODUCER, "consume": _trace.SpanKind.CONSUMER}.get(name, _trace.SpanKind.CLIENT)
    with provider.get_tracer("halfmoon.events").start_as_current_span(
        f"halfmoon {name} {event.topic}", parent, kind, facts
    ) as made:
        yield made


def carry(properties: MutableMapping[str, str]) -> None:
    """Add the trace that is active here to a message's properties, unless they name one. Without a trace they stay as they are."""
    if _installed and TRACEPARENT not in properties and _trace.get_current_span().get_span_context().is_valid:
        _Propagator().inject(properties, _context.get_current())


def trace_of(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Return the trace that travels in a message's properties, as a `span` takes it; None for none."""
    if TRACEPARENT not in properties:
        return None
    return {name: properties[name] for name in (TRACEPARENT, TRACESTATE) if name in properties}
