"""OpenTelemetry spans of what is sent and processed, where the application has set a tracer provider; else nothing is done.

Attributes and kinds follow OpenTelemetry's semantic conventions for messaging (1.37); the trace travels in a message's properties
``traceparent`` and ``tracestate`` (W3C Trace Context). Nothing of OpenTelemetry is imported before the application has done so.
Where it is not installed, clients do not come here.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from halfmoon.client.core.produce.send import Sender
from halfmoon.client.core.produce.transaction import Transactions
from halfmoon.effects import Op
from halfmoon.model import ConsumeStatus, Message, SendResult, StoredMessage

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

T = TypeVar("T")

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
INSTALLED = find_spec("opentelemetry") is not None
LINKS_MAX = 128
"""Links of a span that OpenTelemetry's SDK keeps unless told otherwise."""

# ---------------------------------------------------------------- where somebody records

_tracers: list[tuple[Any, Any]] = []
"""The provider that was found last, and its tracer: making one for each message would cost more than the span."""


def tracer() -> Tracer | None:
    """Return who makes spans; None where the application uses no OpenTelemetry, or has set no provider."""
    if (api := sys.modules.get("opentelemetry.trace")) is None:
        return None
    # The public function looks into the environment, which takes longer than all else here: it is asked where this is gone.
    if (provider := getattr(api, "_TRACER_PROVIDER", api)) is api:
        provider = getattr(api, "get_tracer_provider", lambda: None)()
    if provider is None:
        return None
    if not _tracers or _tracers[0][0] is not provider:
        _tracers[:] = [(provider, provider.get_tracer("halfmoon"))]
    found: Tracer = _tracers[0][1]
    return found


def _api() -> Any:
    return sys.modules["opentelemetry.trace"]


def _propagator() -> Any:
    return import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()


def parent_of(properties: Mapping[str, str]) -> Context | None:
    """Return the trace that came in a message's properties; None for none. A text that is none begins a new trace."""
    found: Context | None = _propagator().extract(properties) if TRACEPARENT in properties else None
    return found


def carry(properties: MutableMapping[str, str], span: Span | None = None) -> None:
    """Add the trace of a span, or of the one that is active here, to a message's properties, unless they name one."""
    if "opentelemetry.trace" in sys.modules and TRACEPARENT not in properties:
        _propagator().inject(properties, None if span is None else _api().set_span_in_context(span))


def attributes_of(operation: str, kind: str, topic: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span: ``operation`` is its name, ``kind`` its type in the conventions, empty for none of these.

    ``more`` are further ones below ``messaging.``. What is empty is left out.
    """
    named = {"system": "rocketmq", "operation.name": operation, "operation.type": kind, "destination.name": topic, **more}
    return {f"messaging.{name}": value for name, value in named.items() if value not in ("", None, [])}


def _facts(messages: Sequence[Message | StoredMessage]) -> dict[str, Any]:
    """Return what one message says of itself, or how many there are."""
    if len(messages) > 1:
        return {"batch.message_count": len(messages)}
    (message,) = messages
    keys = message.keys.split() if isinstance(message.keys, str) else [*message.keys]
    size_bytes = message.held_bytes if isinstance(message, StoredMessage) else len(message.body)
    size = {"message.id": message.msg_id, "message.body.size": size_bytes}
    return {**size, "rocketmq.message.tag": message.tag, "rocketmq.message.keys": keys}


def _links(messages: Sequence[Message | StoredMessage]) -> list[Link]:
    """Return links to the spans that made messages, as far as they name valid ones."""
    parents = [parent for message in messages[:LINKS_MAX] if (parent := parent_of(message.properties)) is not None]
    made = [_api().get_current_span(parent).get_span_context() for parent in parents]
    return [_api().Link(context) for context in made if context.is_valid]


def failed(span: Span, error: BaseException | str) -> None:
    """Note that what a span stands for failed."""
    name = error if isinstance(error, str) else type(error).__name__
    span.set_attribute("error.type", name)
    if isinstance(error, BaseException):
        span.record_exception(error)
    span.set_status(_api().Status(_api().StatusCode.ERROR, name if isinstance(error, str) else f"{name}: {error}"))


@contextmanager
def current_span(
    recorder: Tracer, name: str, kind: str, attributes: Any, parent: Context | None, links: Sequence[Link] = ()
) -> Iterator[Span]:
    """Return a block that is a span, the active one inside it; what leaves the block is noted."""
    options: dict[str, Any] = {"record_exception": False, "set_status_on_exception": False}
    with recorder.start_as_current_span(name, parent, _api().SpanKind[kind], attributes, links, **options) as span:
        try:
            yield span
        except BaseException as exc:
            failed(span, exc)
            raise


# ---------------------------------------------------------------- sending


def add_spans(operations: Sender | Transactions, group: str) -> None:
    """Have each send, or each half message until it is stored, be a span: it begins with the call, in the trace of the caller."""
    if isinstance(operations, Transactions):
        vars(operations)["store"] = _spanning(operations.store, group, "transaction")
        return
    first = operations.first
    vars(operations)["first"] = lambda *what: first(*what) if tracer() is None else None  # then it is sent by one of those below
    for operation in (operations.send, operations.send_async, operations.send_oneway, operations.send_batch):
        vars(operations)[operation.__name__] = _spanning(operation, group, "")


def _spanning(operation: Callable[..., Op[T]], group: str, kind: str) -> Callable[..., Op[T]]:
    """Return what makes an operation on a message, or on a batch, that is a span; ``kind`` is the message's, if it is special."""

    def made(what: Any, **options: Any) -> Op[T]:
        if (recorder := tracer()) is None:
            return operation(what, **options)
        one = not isinstance(what, list | tuple)
        messages: Any = [what] if one else what
        if not messages or not all(map(_is_whole, messages)):
            return operation(what, **options)  # which refuses it
        first: Message = messages[0]
        facts = {"rocketmq.client_group": group, "rocketmq.message.type": kind or ("delay" if first.is_delayed else "normal")}
        attributes = attributes_of("send", "send", first.topic, facts | _facts(messages))
        side = "CLIENT" if all(TRACEPARENT in message.properties for message in messages) else "PRODUCER"
        links = _links(messages)
        span = recorder.start_span(f"send {first.topic}", kind=_api().SpanKind[side], attributes=attributes, links=links)
        sent = [msgspec.structs.replace(message, properties=dict(message.properties)) for message in messages]
        for message in sent:
            carry(message.properties, span)
        return _until_over(span, operation(sent[0] if one else sent, **options))

    return made


def _is_whole(message: Any) -> bool:
    """Whether a message has the types that are looked at here."""
    if not isinstance(message, Message) or not isinstance(message.keys, str | tuple | list):
        return False
    return isinstance(message.topic, str) and isinstance(message.properties, dict) and isinstance(message.body, bytes | bytearray)


def _until_over(span: Span, operation: Op[T]) -> Op[T]:
    try:
        result = yield from operation
        if isinstance(result, SendResult):
            span.set_attribute("messaging.message.id", result.msg_id)
            span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
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
    first = messages[0]
    facts = {"consumer.group.name": group, "destination.partition.id": str(first.queue_id), **_facts(messages)}
    attributes = attributes_of("process", "process", first.topic, facts)
    parent, links = (parent_of(first.properties), []) if len(messages) == 1 else (None, _links(messages))
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
    if span is not None and (status is ConsumeStatus.RECONSUME_LATER or status is ConsumeStatus.ROLLBACK):
        failed(span, status.name)
    return status
