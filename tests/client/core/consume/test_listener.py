"""How a listener is called, and what it may say of the messages."""

from __future__ import annotations

from halfmoon.client.core.consume.listener import ConsumeContext
from halfmoon.wire.headers.send import ConsumerSendMsgBack
from tests.client.core.consume.test_give_back import FIRST, QUEUE
from tests.client.queue_of import Queues, push, started
from tests.client.scripted import Scripted


def test_the_context_says_how_many_succeeded_and_when_the_rest_comes_again():
    script = Scripted()
    Queues(script).fill(4)
    core = push(script, consume_from=FIRST, consume_batch_max=4)

    def listener(messages, context: ConsumeContext):
        assert context.queue == QUEUE
        context.ack_index, context.delay_level = 1, 5

    core.on_message(listener)
    started(script, core)

    assert [(back.request.offset, back.request.delay_level) for back in script.asked(ConsumerSendMsgBack)] == [(200, 5), (300, 5)]
    assert core.offsets.memory(QUEUE) == 4


def test_a_parameter_with_a_default_value_is_the_listeners_own():
    script = Scripted()
    Queues(script).fill(1)
    core = push(script, consume_from=FIRST)
    seen = []

    def listener(messages, mine="default"):
        seen.append(mine)

    core.on_message(listener)
    started(script, core)

    assert seen == ["default"]
