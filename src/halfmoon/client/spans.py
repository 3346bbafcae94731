"""OpenTelemetry spans of what is sent and processed, where the application has set a tracer provider; else nothing is done.

Attributes and kinds follow OpenTelemetry's semantic conventions for messaging (1.37); the trace travels in a message's properties
``traceparent`` and ``tracestate`` (W3C Trace Context). Nothing of OpenTelemetry is imported before the application has done so.
Where it is not installed, clients have neither these senders nor these listeners.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from halfmoon.client.core.produce.linger import LingeringSender
from halfmoon.client.core.produce.send import Chosen, FirstAttempt, Sender
from halfmoon.client.core.produce.transaction import StoredHalf, Transactions
from halfmoon.effects import Op
from halfmoon.model import ConsumeStatus, Message, MessageQueue, SendResult, StoredMessage

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Tracer

T = TypeVar("T")

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
INSTALLED = find_spec("opentelemetry") is not None
LINKS_MAX = 128
"""Of a span: what OpenTelemetry's SDK keeps unless told otherwise."""

# ---------------------------------------------------------------- where somebody records

_tracers: list[tuple[Any, Any]] = []
"""The provider that was found last, and its tracer: making one for each message would cost more than the span."""


def tracer() -> Tracer | None:
    """Return who makes spans; None where the application uses no OpenTelemetry, or has set no provider."""
    if (api := sys.modules.get("opentelemetry.trace")) is None:
        return None
    # The public function looks into the environment, which takes longer than all else here: it is asked where this is gone.
    provider = getattr(api, "_TRACER_PROVIDER", api)
    provider = getattr(api, "get_tracer_provider", lambda: None)() if provider is api else provider
    if provider is None:
        return None
    if not _tracers or _tracers[0][0] is not provider:
        _tracers[:] = [(provider, provider.get_tracer("halfmoon"))]
    found: Tracer = _tracers[0][1]
    return found


def kind_of(name: str) -> SpanKind:
    """Return a kind of spans: PRODUCER, CONSUMER or CLIENT."""
    kind: SpanKind = sys.modules["opentelemetry.trace"].SpanKind[name]
    return kind


def _propagator() -> Any:
    return import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()


def parent_of(properties: Mapping[str, str]) -> Context | None:
    """Return the trace that came in a message's properties; None for none. A text that is none begins a new trace."""
    found: Context | None = _propagator().extract(properties) if TRACEPARENT in properties else None
    return found


def carry(properties: MutableMapping[str, str], span: Span | None = None) -> None:
    """Add the trace of a span, or of the one that is active here, to a message's properties, unless they name one."""
    if (api := sys.modules.get("opentelemetry.trace")) is None or TRACEPARENT in properties:
        return
    _propagator().inject(properties, None if span is None else api.set_span_in_context(span))


def attributes_of(operation: str, kind: str, topic: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span: ``operation`` is its name, ``kind`` its type in the conventions, empty for none of these.

    ``more`` are further ones below ``messaging.``. What is empty is left out.
    """
    named = {"system": "rocketmq", "operation.name": operation, "operation.type": kind, "destination.name": topic, **more}
    return {f"messaging.{name}": value for name, value in named.items() if value not in ("", None, [])}


def _link(message: StoredMessage | Message) -> list[Link]:
    """Return a link to the span that made a message, where it names a valid one."""
    if (parent := parent_of(message.properties)) is None:
        return []
    api: Any = sys.modules["opentelemetry.trace"]
    made = api.get_current_span(parent).get_span_context()
    return [api.Link(made)] if made.is_valid else []


def failed(span: Span, error: BaseException | str) -> None:
    """Note that what a span stands for failed."""
    name = error if isinstance(error, str) else type(error).__name__
    span.set_attribute("error.type", name)
    if isinstance(error, BaseException):
        span.record_exception(error)
    api: Any = sys.modules["opentelemetry.trace"]
    span.set_status(api.Status(api.StatusCode.ERROR, name if isinstance(error, str) else f"{name}: {error}"))


@contextmanager
def current_span(
    recorder: Tracer, name: str, kind: str, attributes: Any, parent: Context | None, links: Sequence[Link] = ()
) -> Iterator[Span]:
    """Return a block that is a span, the active one inside it; what leaves the block is noted."""
    options: dict[str, Any] = {"record_exception": False, "set_status_on_exception": False}
    with recorder.start_as_current_span(name, parent, kind_of(kind), attributes, links, **options) as span:
        try:
            yield span
        except BaseException as exc:
            failed(span, exc)
            raise


# ---------------------------------------------------------------- sending


class SenderSpans(Sender):
    """A sender each of whose sends is a span, beginning with the call and in the trace of the caller."""

    def first(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Any,
        key: Any,
        timeout_ms: int | None,
        begin: int,
        born_ms: int,
    ) -> FirstAttempt | None:
        """As `Sender.first`; None where the send is a span."""
        return None if tracer() is not None else super().first(message, queue, selector, key, timeout_ms, begin, born_ms)

    def send(self, message: Message, **chosen: Unpack[Chosen]) -> Op[SendResult]:
        """As `Sender.send`."""
        if (recorder := tracer()) is None:
            return super().send(message, **chosen)
        return _spanned(recorder, super().send, message, chosen, self.settings.group)

    def send_async(self, message: Message, **chosen: Unpack[Chosen]) -> Op[SendResult]:
        """As `Sender.send_async`."""
        if (recorder := tracer()) is None:
            return super().send_async(message, **chosen)
        return _spanned(recorder, super().send_async, message, chosen, self.settings.group)

    def send_oneway(self, message: Message, **chosen: Unpack[Chosen]) -> Op[None]:
        """As `Sender.send_oneway`."""
        if (recorder := tracer()) is None:
            return super().send_oneway(message, **chosen)
        return _spanned(recorder, super().send_oneway, message, chosen, self.settings.group)

    def send_batch(self, messages: Sequence[Message], **limits: Any) -> Op[SendResult]:
        """As `Sender.send_batch`."""
        if (recorder := tracer()) is None:
            return super().send_batch(messages, **limits)
        return _spanned(recorder, super().send_batch, messages, limits, self.settings.group)


class LingeringSenderSpans(SenderSpans, LingeringSender):
    """As `SenderSpans`, of a sender whose messages wait for others."""


class TransactionSpans(Transactions):
    """Transactions each of whose half messages is a span until it is stored."""

    def store(self, message: Message, **limits: Any) -> Op[StoredHalf]:
        """As `Transactions.store`."""
        if (recorder := tracer()) is None:
            return super().store(message, **limits)
        return _spanned(recorder, super().store, message, limits, self.settings.group, "transaction")


def _spanned(recorder: Tracer, operation: Callable[..., Op[T]], what: Any, options: Any, group: str, kind: str = "") -> Op[T]:
    """Return an operation on a message, or on a batch, that is a span. ``kind`` is the message's, where it does not say it."""
    one = not isinstance(what, list | tuple)
    messages: Any = [what] if one else what
    if not messages or not all(map(_is_whole, messages)):
        return operation(what, **options)  # what is no message is refused there
    first: Message = messages[0]
    facts = {
        "rocketmq.client_group": group,
        "rocketmq.message.type": kind or ("delay" if first.is_delayed else "normal"),
        **(_facts(first) if one else {"batch.message_count": len(messages)}),
    }
    links = [link for message in messages[:LINKS_MAX] for link in _link(message)]
    side = kind_of("CLIENT" if all(TRACEPARENT in message.properties for message in messages) else "PRODUCER")
    attributes = attributes_of("send", "send", first.topic, facts)
    span = recorder.start_span(f"send {first.topic}", kind=side, attributes=attributes, links=links)
    sent = [_with_trace(message, span) for message in messages]
    return _until_over(span, operation(sent[0] if one else sent, **options))


def _is_whole(message: Any) -> bool:
    """Whether a message has the types that are looked at here."""
    return (
        isinstance(message, Message)
        and isinstance(message.topic, str)
        and isinstance(message.properties, dict)
        and isinstance(message.body, bytes | bytearray | memoryview)
        and isinstance(message.keys, str | tuple | list)
    )


def _facts(message: Message | StoredMessage) -> dict[str, Any]:
    """Return what one message says of itself."""
    keys = message.keys.split() if isinstance(message.keys, str) else [*message.keys]
    return {
        "message.id": message.msg_id,
        "message.body.size": len(message.body),
        "rocketmq.message.tag": message.tag,
        "rocketmq.message.keys": keys,
    }


def _with_trace(message: Message, span: Span) -> Message:
    properties = dict(message.properties)
    carry(properties, span)
    return msgspec.structs.replace(message, properties=properties)


def _until_over(span: Span, operation: Op[T]) -> Op[T]:
    try:
        result = yield from operation
        sent = result.result if isinstance(result, StoredHalf) else result
        if isinstance(sent, SendResult):
            span.set_attribute("messaging.message.id", sent.msg_id)
            span.set_attribute("messaging.destination.partition.id", str(sent.queue.queue_id))
        return result
    except BaseException as exc:
        failed(span, exc)
        raise
    finally:
        span.end()


# ---------------------------------------------------------------- processing


@contextmanager
def processing(messages: Sequence[StoredMessage], *, group: str) -> Iterator[Span | None]:
    """Return a block that is a span of processing messages of one topic: for who reads with a `PullConsumer`.

    The span of one message belongs to the trace that came with it; that of several is linked to their traces. What leaves the block
    is noted. Without a provider it does nothing.
    """
    if (recorder := tracer()) is None or not messages:
        yield None
        return
    first, one = messages[0], len(messages) == 1
    facts = {
        "consumer.group.name": group,
        "destination.partition.id": str(first.queue_id),
        **(_facts(first) if one else {"batch.message_count": len(messages)}),
    }
    attributes = attributes_of("process", "process", first.topic, facts)
    parent = parent_of(first.properties) if one else None
    links = [] if one else [link for message in messages[:LINKS_MAX] for link in _link(message)]
    with current_span(recorder, f"process {first.topic}", "CONSUMER", attributes, parent, links) as span:
        yield span


def listener_with_spans(listener: Callable[..., Any], group: str) -> Callable[..., Any]:
    """Return a listener of a push consumer each of whose calls is a span of `processing`."""
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None)):  # noqa: B004

        async def waiting(messages: list[StoredMessage], *context: Any) -> Any:
            if tracer() is None:
                return await listener(messages, *context)
            with processing(messages, group=group) as span:
                return _said(span, await listener(messages, *context))

        return functools.update_wrapper(waiting, listener)

    def calling(messages: list[StoredMessage], *context: Any) -> Any:
        if tracer() is None:
            return listener(messages, *context)
        with processing(messages, group=group) as span:
            return _said(span, listener(messages, *context))

    return functools.update_wrapper(calling, listener)


def _said(span: Span | None, status: Any) -> Any:
    """Note where a listener wants messages again; its result goes on as it is."""
    if span is not None and status in (ConsumeStatus.RECONSUME_LATER, ConsumeStatus.ROLLBACK):
        failed(span, status.name)
    return status
