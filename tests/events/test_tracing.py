"""One log line a step, and OpenTelemetry spans where that is installed."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from halfmoon.events import Consumers, Publisher, local_transaction, tracing
from halfmoon.events.consuming.on import Handler
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import message_of
from halfmoon.events.event import Event
from halfmoon.events.testing import MemoryBus
from halfmoon.events.tracing import TRACEPARENT, carry, span, step

EVENT = Event(id="E1", topic="TP_ORDER", code="EC_PAID", group="P_shop")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What was recorded. The provider is the test's own: the process-wide one can be set only once."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {one.name.split()[0]: one for one in exporter.get_finished_spans()}


# ---------------------------------------------------------------- lines


@pytest.mark.mission("002-08", "002-24")
def test_a_step_is_one_line_with_every_name(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "halfmoon.events"):
        step("prepared", EVENT, message_id="M1", attempt=2)
        step("checked", EVENT, group="P_other", checks=3, decision="commit")

    assert [record.getMessage() for record in caplog.records] == [
        "prepared: event=E1 topic=TP_ORDER code=EC_PAID message=M1 group=P_shop attempt=2",
        "checked: event=E1 topic=TP_ORDER code=EC_PAID message=E1 group=P_other checks=3 decision=commit",
    ]
    assert caplog.records[0].halfmoon_event == "E1"  # type: ignore[attr-defined]  # fields for log collectors
    assert caplog.records[1].halfmoon_checks == 3  # type: ignore[attr-defined]


def test_an_error_makes_it_a_warning_on_one_line(caplog: pytest.LogCaptureFixture):
    step("not published", EVENT, error=ValueError("two\nlines"))

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith("error=ValueError: two lines")


def test_the_lines_cost_nothing_when_nobody_wants_them(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracing.log, "log", lambda *args, **options: pytest.fail("written"))
    with caplog.at_level(logging.WARNING, "halfmoon.events"):
        step("sent", EVENT)


# ---------------------------------------------------------------- spans


@pytest.mark.mission("002-24")
def test_the_consumers_span_belongs_to_the_publishers_trace(spans: InMemorySpanExporter):
    with span("publish", EVENT, group="P_shop"):
        message = message_of(Event(id="E1", topic="TP_ORDER", code="EC_PAID"), Codecs(), group="P_shop", now_ms=1)
    with span("consume", EVENT, group="S_mail", carrier=message.properties, attempt=2):
        pass

    found = named(spans)
    publish, consume = found["publish"], found["consume"]
    assert consume.parent is not None
    assert consume.parent.span_id == publish.context.span_id
    assert consume.context.trace_id == publish.context.trace_id
    assert (publish.kind, consume.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert publish.name == "publish TP_ORDER"
    assert dict(consume.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "consume",
        "messaging.operation.type": "process",
        "messaging.destination.name": "TP_ORDER",
        "messaging.message.id": "E1",
        "messaging.rocketmq.message.tag": "EC_PAID",
        "messaging.consumer.group.name": "S_mail",
        "halfmoon.attempt": 2,
    }


def test_an_exception_is_recorded_and_goes_on(spans: InMemorySpanExporter):
    with pytest.raises(LookupError), span("check", EVENT):
        raise LookupError("gone")

    (found,) = spans.get_finished_spans()
    assert found.status.status_code is StatusCode.ERROR
    assert found.events[0].name == "exception"


@pytest.mark.parametrize("carrier", [None, {}, {TRACEPARENT: "nonsense"}])
def test_without_a_trace_that_came_along_a_span_begins_a_new_one(spans: InMemorySpanExporter, carrier: dict[str, str] | None):
    with span("consume", EVENT, carrier=carrier):
        pass

    assert spans.get_finished_spans()[0].parent is None


def test_a_trace_that_the_caller_set_stays(spans: InMemorySpanExporter):
    properties = {TRACEPARENT: "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    with span("publish", EVENT):
        carry(properties)

    assert properties == {TRACEPARENT: "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}


def test_without_opentelemetry_spans_do_nothing():
    script = """
import sys
sys.modules["opentelemetry"] = None
from halfmoon.events.event import Event
from halfmoon.events.consuming.on import Handler
from halfmoon.events.testing import MemoryBus
from halfmoon.events.tracing import carry, span
event, properties = Event(id="E1", topic="T", code="C"), {}
with span("publish", event) as made:
    carry(properties)
print(made, properties)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout.strip(), done.stderr) == ("None {}", "")


def test_where_nobody_records_a_span_is_nothing_and_nothing_travels():
    assert span("publish", EVENT) is span("consume", EVENT)
    carry(properties := {})
    assert properties == {}
    assert TRACEPARENT not in message_of(Event(id="E1", topic="T", code="C"), Codecs(), group="P", now_ms=1).properties


# ---------------------------------------------------------------- a whole way


@pytest.mark.mission("002-24")
@pytest.mark.parametrize("lost", [False, True])
def test_every_step_of_a_transactional_event_is_in_the_trace_of_who_published_it(
    spans: InMemorySpanExporter, halfmoon_events: MemoryBus, lost: bool
):
    bus = halfmoon_events
    shop = Publisher("P_shop", transport=bus)
    shop.check()(lambda event, context: None)
    mail = Handler(group="S_mail", topic="TP_ORDER", code="EC_PAID", function=lambda event: None)
    if lost:
        bus.lose_second_phase()
    with shop, Consumers(mail, bus=bus), trace.get_tracer_provider().get_tracer("web").start_as_current_span("request"):
        with local_transaction():
            shop.publish("TP_ORDER", "EC_PAID", {}, transactional=True)
        bus.check_now()
        bus.deliver()

    found = named(spans)
    assert set(found) == {"request", "publish", "prepare", "decide", "consume", *(["check"] if lost else [])}
    assert {one.context.trace_id for one in found.values()} == {found["request"].context.trace_id}
    publish = found["publish"].context.span_id
    for name in set(found) - {"request", "publish"}:
        assert found[name].parent is not None
        assert found[name].parent.span_id == publish, name
