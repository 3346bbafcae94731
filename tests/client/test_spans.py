"""OpenTelemetry spans from producer to consumer, as a collector gets them (OTLP over HTTP, decoded); nothing without a provider."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from halfmoon import (
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeFrom,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from halfmoon.client import spans
from halfmoon.client.spans import TRACEPARENT, listener_with_spans, processing
from halfmoon.effects import at_once
from halfmoon.errors import MessageIllegal, UsageError
from halfmoon.events import Consumers, Publisher
from halfmoon.events.consuming.on import Handler
from tests.waiting import until

FOREIGN = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


class Collector:
    """A collector of OpenTelemetry in memory: takes OTLP in protobuf over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.service = ""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in request.resource_spans:
                    collector.service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
                    for scope in resource.scope_spans:
                        assert scope.scope.name in ("halfmoon", "web")
                        collector.spans += scope.spans
                body = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://localhost:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def named(self, name: str) -> list[Span]:
        return [one for one in self.spans if one.name == name]


def attributes(span: Span) -> dict[str, Any]:
    kinds = {one.key: (one.value.WhichOneof("value"), one.value) for one in span.attributes}
    return {
        key: [each.string_value for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
        for key, (kind, value) in kinds.items()
    }


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, and the process's tracer provider that exports to it: the real one can be set only once."""
    found = Collector()
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=found.endpoint), schedule_delay_millis=50))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield found
    provider.shutdown()
    found.close()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def request() -> Any:
    return trace.get_tracer_provider().get_tracer("web").start_as_current_span("request")


# ---------------------------------------------------------------- with a broker and a collector


@pytest.mark.slow
def test_a_collector_gets_the_way_of_each_message_from_its_producer_to_its_consumers(collector: Collector, cluster, topic: str):
    got: list[bytes] = []

    def listen(messages):
        got.extend(message.body for message in messages)

    check = {"check": lambda message: LocalTransactionState.UNKNOWN}
    settings = {"nameserver": cluster.nameserver, "consume_from": ConsumeFrom.FIRST_OFFSET}
    consumer = PushConsumer(group="C_mail", **settings)
    consumer.subscribe(topic)
    consumer.on_message(listen)
    with consumer, TransactionProducer(group="P_shop", nameserver=cluster.nameserver, **check) as producer:
        with request():
            sent = producer.send(Message(topic, b"one", tag="paid", keys=["o-1"]))
            producer.send_async(Message(topic, b"two")).result(30)
            producer.send_batch([Message(topic, b"three"), Message(topic, b"four")])
            producer.send_oneway(Message(topic, b"five"))
            with producer.half(Message(topic, b"six")):
                pass
            producer.send_in_transaction(Message(topic, b"seven"), executor=lambda message, arg: LocalTransactionState.COMMIT)
        until(lambda: len(got) == 7)
    until(lambda: len(collector.spans) == 1 + 6 + 7)

    (web,) = collector.named("request")
    sends, processes = collector.named(f"send {topic}"), collector.named(f"process {topic}")
    assert collector.service == "shop"
    assert (len(sends), len(processes), {one.trace_id for one in collector.spans}) == (6, 7, {web.trace_id})
    assert {(one.kind, one.parent_span_id) for one in sends} == {(Span.SPAN_KIND_PRODUCER, web.span_id)}
    assert {one.kind for one in processes} == {Span.SPAN_KIND_CONSUMER}
    assert {one.parent_span_id for one in processes} == {one.span_id for one in sends}
    first = next(one for one in sends if attributes(one)["messaging.message.id"] == sent.msg_id)
    assert attributes(first) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(sent.queue.queue_id),
        "messaging.message.id": sent.msg_id,
        "messaging.message.body.size": 3,
        "messaging.rocketmq.client_group": "P_shop",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ["o-1"],
    }
    processed = next(one for one in processes if one.parent_span_id == first.span_id)
    assert attributes(processed) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(sent.queue.queue_id),
        "messaging.message.id": sent.msg_id,
        "messaging.message.body.size": 3,
        "messaging.consumer.group.name": "C_mail",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ["o-1"],
    }
    kinds = sorted(attributes(one)["messaging.rocketmq.message.type"] for one in sends)
    assert kinds == ["normal"] * 4 + ["transaction"] * 2
    assert [count for one in sends if (count := attributes(one).get("messaging.batch.message_count"))] == [2]


@pytest.mark.slow
async def test_producers_and_consumers_on_asyncio_make_the_same_spans(collector: Collector, cluster, topic: str):
    over = asyncio.Event()
    consumer = AsyncPushConsumer(group="C_aio", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(topic)

    @consumer.on_message
    async def listen(messages):
        with trace.get_tracer_provider().get_tracer("web").start_as_current_span("mail"):
            over.set()

    async with consumer, AsyncProducer(group="P_aio", nameserver=cluster.nameserver) as producer:
        await producer.queues(topic)  # from now on a send takes the short way
        with request():
            await producer.send(Message(topic, b"one"))
        await asyncio.wait_for(over.wait(), 30)
    await asyncio.to_thread(until, lambda: len(collector.spans) == 4)

    chain = [collector.named(name)[0] for name in ("request", f"send {topic}", f"process {topic}", "mail")]
    assert [one.parent_span_id for one in chain[1:]] == [one.span_id for one in chain[:-1]]


@pytest.mark.slow
def test_events_have_spans_of_their_own_and_the_client_below_makes_no_others(collector: Collector, cluster, topic: str):
    over = threading.Event()
    handler = Handler(group="S_spans", topic=topic, code="EC_PAID", function=lambda event: over.set())
    with Consumers(handler, nameserver=cluster.nameserver), Publisher("P_spans", cluster.nameserver) as events:
        with request():
            event_id = events.publish(topic, "EC_PAID", 42).event_id
        assert over.wait(30)
    until(lambda: len(collector.spans) == 3)

    (web,), (published,), (consumed,) = (collector.named(name) for name in ("request", f"publish {topic}", f"consume {topic}"))
    assert (published.parent_span_id, consumed.parent_span_id) == (web.span_id, published.span_id)
    assert attributes(consumed) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "consume",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.message.id": event_id,
        "messaging.message.body.size": 2,
        "messaging.consumer.group.name": "S_spans",
        "messaging.rocketmq.message.tag": "EC_PAID",
        "halfmoon.attempt": 1,
    }
    assert attributes(published)["messaging.message.body.size"] == 2


@pytest.mark.slow
def test_a_send_that_fails_and_a_message_that_comes_again_are_errors(collector: Collector, cluster, topic: str):
    consumer = PushConsumer(group="C_again", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(topic)
    over = threading.Event()

    @consumer.on_message
    def listen(messages):
        over.set()
        return ConsumeStatus.RECONSUME_LATER

    with consumer, Producer(group="P_shop", nameserver=cluster.nameserver, body_bytes_max=10) as producer:
        with pytest.raises(MessageIllegal):
            producer.send(Message(topic, b"x" * 11))
        producer.send(Message(topic, b"one"))
        assert over.wait(30)
    until(lambda: len(collector.spans) == 3)

    refused, processed = collector.named(f"send {topic}")[0], collector.named(f"process {topic}")[0]
    assert {one.status.code for one in (refused, processed)} == {Status.STATUS_CODE_ERROR}
    assert [attributes(one)["error.type"] for one in (refused, processed)] == ["MessageIllegal", "RECONSUME_LATER"]
    assert refused.events[0].name == "exception"


@pytest.mark.slow
def test_who_reads_with_a_pull_consumer_says_what_is_processed(collector: Collector, cluster, topic: str):
    with (
        Producer(group="P_shop", nameserver=cluster.nameserver) as producer,
        PullConsumer(group="C_pull", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer,
    ):
        consumer.subscribe(topic)
        for body in (b"one", b"two"):
            producer.send(Message(topic, body))
        messages: list[Any] = []
        while len(messages) < 2:
            messages += consumer.poll(1_000)
        with processing(messages, group="C_pull"):
            pass
    until(lambda: len(collector.spans) == 3)

    (processed,) = collector.named(f"process {topic}")
    assert processed.parent_span_id == b""
    assert {link.span_id for link in processed.links} == {one.span_id for one in collector.named(f"send {topic}")}
    assert attributes(processed)["messaging.batch.message_count"] == 2


@pytest.mark.slow
def test_messages_that_leave_as_one_batch_have_a_span_each(collector: Collector, cluster, topic: str):
    with Producer(group="P_linger", nameserver=cluster.nameserver, linger_ms=50) as producer:
        futures = [producer.send_async(Message(topic, b"paid")) for _ in range(3)]
        ids = {future.result(30).msg_id for future in futures}
    until(lambda: len(collector.spans) == 3)

    assert {attributes(one)["messaging.message.id"] for one in collector.spans} == ids
    assert len({one.trace_id for one in collector.spans}) == 3


# ---------------------------------------------------------------- one operation


class Sending:
    """Keeps what the operation below was given."""

    def __init__(self) -> None:
        self.given: Any = None

    def __call__(self, what: Any, **options: Any) -> Any:
        self.given = what
        yield from ()
        return None


def spanned(what: Any) -> Any:
    sending = Sending()
    at_once(spans._spanning(sending, "P_shop", "")(what))
    return sending.given


def test_the_callers_message_stays_as_it_was(recorded: InMemorySpanExporter):
    message = Message("orders", b"paid", properties={"tenant": "acme"})
    given = spanned(message)

    assert message.properties == {"tenant": "acme"}
    assert set(given.properties) == {"tenant", TRACEPARENT}


def test_a_trace_that_the_message_names_stays_and_is_linked(recorded: InMemorySpanExporter):
    given = spanned(Message("orders", b"paid", properties={TRACEPARENT: FOREIGN}))

    (span,) = recorded.get_finished_spans()
    assert given.properties == {TRACEPARENT: FOREIGN}
    assert (span.kind, span.links[0].context.trace_id) == (trace.SpanKind.CLIENT, int("1" * 32, 16))


@pytest.mark.parametrize("text", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\ud800" * 60, "00-" * 10_000])
def test_a_trace_that_is_none_is_passed_over(recorded: InMemorySpanExporter, text: str):
    spanned(Message("orders", b"paid", properties={TRACEPARENT: text, "tracestate": text}))

    assert [(len(span.links), span.parent) for span in recorded.get_finished_spans()] == [(0, None)]


@pytest.mark.parametrize("what", ["orders", None, 7, Message(None, b""), Message("a", 7), Message("a", b"", properties=None), []])  # type: ignore[arg-type]
def test_what_is_no_message_is_left_to_the_send_to_refuse(recorded: InMemorySpanExporter, what: Any):
    assert spanned(what) is what
    assert recorded.get_finished_spans() == ()


def test_a_listener_keeps_its_signature_its_result_and_its_error(recorded: InMemorySpanExporter):
    def fails(messages, context):
        raise LookupError("gone")

    wrapped = listener_with_spans(fails, "C")
    with pytest.raises(LookupError):
        wrapped([], None)
    assert wrapped.__name__ == "fails"
    assert listener_with_spans(lambda messages: ConsumeStatus.COMMIT, "C")([]) is ConsumeStatus.COMMIT


def test_settings_switch_spans_off(recorded: InMemorySpanExporter):
    producer = Producer(group="P_shop", nameserver="127.0.0.1:1", spans=False)

    assert "send" not in vars(producer._client.sender)
    assert "send" in vars(Producer(group="P_shop", nameserver="127.0.0.1:1")._client.sender)
    for on in (True, False):
        consumer = PushConsumer(group="C_mail", nameserver="127.0.0.1:1", spans=on)
        assert consumer.on_message(print) is print
        assert (consumer._client.core.listener.function is print) is not on


# ---------------------------------------------------------------- nobody records


@pytest.mark.parametrize(("before", "looks"), [("", True), ("sys.modules['opentelemetry'] = None", False)])
def test_a_program_without_opentelemetry_never_imports_it(before: str, looks: bool):
    script = (
        f"import sys\n{before}"
        + """
import halfmoon.client.aio, halfmoon.client.sync_transaction
import halfmoon.events.consuming.consumers, halfmoon.events.publishing.publisher
from halfmoon.client.spans import carry, processing, tracer
properties = {}
carry(properties)
with processing([object()], group="C") as span:
    print(tracer(), span, properties, [name for name in sys.modules if name.startswith("opentelemetry.")])
print("send" in vars(halfmoon.client.sync_transaction.TransactionProducer(group="P")._client.sender))
"""
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout.splitlines(), done.stderr) == (["None None {} []", str(looks)], "")


def test_without_a_provider_a_send_is_given_the_callers_own_message():
    message = Message("orders", b"paid")

    assert spanned(message) is message


def test_a_later_api_without_the_short_way_is_asked_by_its_public_function(monkeypatch: pytest.MonkeyPatch):
    provider = TracerProvider()
    monkeypatch.delattr(trace, "_TRACER_PROVIDER")
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    assert spans.tracer() is not None
    monkeypatch.delattr(trace, "get_tracer_provider")
    assert spans.tracer() is None


def test_a_failed_send_without_a_provider_fails_as_ever():
    with pytest.raises(UsageError):
        Producer(group="P_shop", nameserver="127.0.0.1:1").send("orders")  # type: ignore[arg-type]
