"""Pull consumers that each get everything: their progress is a file of their own, and speaks of what was confirmed as well."""

from __future__ import annotations

from random import Random

from halfmoon.client.core.consume.offsets import LocalOffsets
from halfmoon.client.core.consume.pull_consumer import PullConsumerCore
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import PullSettings
from halfmoon.model import ConsumeFrom, MessageModel, MessageQueue
from halfmoon.wire.bodies import LocalOffsetTable, from_json
from tests.client.queue_of import ME, Queues, started
from tests.client.scripted import Later, Scripted

ONE = MessageQueue("orders", "broker-a", 0)


class File:
    """A file in memory."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def load(self) -> bytes | None:
        return self.data

    def save(self, data: bytes) -> None:
        self.data = data

    def offsets(self) -> dict[MessageQueue, int]:
        """Return what was saved."""
        return from_json(LocalOffsetTable, self.data or b"").offset_table


def broadcast(script, file):
    settings = PullSettings(group="C", nameserver="ns:1", model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST_OFFSET)
    instance = Instance(settings, ME, Random(1))
    core = PullConsumerCore(settings, instance, LocalOffsets(file))
    core.subscribe("orders")
    return started(script, core)


def test_a_member_that_gets_everything_stores_what_was_confirmed_and_begins_there_again():
    file = File()
    script = Scripted()
    Queues(script).fill(10)
    core = broadcast(script, file)
    given = [script.run(core.poll(100, count_max=1))[0].queue_offset for _ in range(3)]
    script.run(core.stop())
    stored = file.offsets()
    script = Scripted()
    Queues(script).fill(10)
    again = broadcast(script, file)

    assert (given, stored) == ([0, 1, 2], {ONE: 2})
    assert [message.queue_offset for message in script.run(again.poll(100))] == list(range(2, 10))


class SlowFile(File):
    """A file whose first save takes a second."""

    def __init__(self, script: Scripted) -> None:
        super().__init__()
        self.script, self.begun = script, []

    def save(self, data: bytes) -> Later:
        super().save(data)
        self.begun.append(self.script.now)
        return Later(1_000 if len(self.begun) == 1 else 1)


def test_progress_is_saved_one_table_after_the_other_so_that_no_older_one_comes_last():
    script = Scripted()
    file = SlowFile(script)
    Queues(script).fill(10)
    core = broadcast(script, file)
    script.run(core.poll(100, count_max=1))
    script.spawn(core.commit())
    script.run_for(100)
    script.run(core.poll(100, count_max=1))

    script.run(core.commit())

    assert file.offsets() == {ONE: 2}
    assert file.begun[1] - file.begun[0] == 1_000
