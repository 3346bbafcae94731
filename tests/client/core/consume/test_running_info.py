"""What consumers tell operators of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from halfmoon.client.settings import PushSettings
from halfmoon.model import ConsumeStatus, MessageQueue
from tests.client.core.consume.test_rates import FIRST
from tests.client.queue_of import Queues, listening, poll, started
from tests.client.scripted import Scripted


def test_running_info_tells_the_figures_of_every_subscribed_topic():
    script = Scripted()
    Queues(script).fill(30)
    core = listening(
        script, lambda messages: ConsumeStatus.RECONSUME_LATER if messages[0].queue_offset == 7 else None, consume_from=FIRST
    )
    script.run_for(20_000)

    table = core.running_info().status_table

    assert sorted(table) == ["%RETRY%C", "orders"]
    assert table["orders"].pull_tps > 1
    assert table["orders"].consume_ok_tps > 1
    assert table["orders"].consume_failed_msgs == 1
    assert table["orders"].pull_rt > 0


def test_a_pull_consumer_tells_how_fast_it_pulls():
    script = Scripted()
    Queues(script).fill(30)
    core = poll(script, consume_from=FIRST)
    script.run(core.assign([MessageQueue("orders", "broker-a", 0)]))
    started(script, core)
    script.run_for(20_000)

    assert core.running_info().status_table["orders"].pull_tps > 1


def test_secrets_are_not_told():
    @dataclass(frozen=True, kw_only=True)
    class Signing(PushSettings):
        password: str = field(default="hidden", metadata={"java": None, "secret": True})

    script = Scripted()
    Queues(script).fill(1)
    core = listening(script, lambda messages: None, consume_from=FIRST)
    core.settings = Signing(**{each.name: getattr(core.settings, each.name) for each in fields(core.settings)})

    told = core.running_info().properties

    assert told["consumeMessageBatchMaxSize"]
    assert "hidden" not in told.values()
