"""What the Bloom filter beside messages costs senders and saves readers: a table on standard output, by processor time.

    [HALFMOON_NATIVE=0] python benchmarks/bloom.py [--messages 8192] [--runs 5] [--only CONTAINS]

Two broker cores without sockets get the same requests in turn, one with ``filter_bitmap`` and one without it. In each round the
messages are sent, in batches of 32, and then every group reads all of them, 32 messages a pull, by the expression of its heartbeat.
Each number is the median of the rounds, in microseconds of the broker's processor time a message; one round before is not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from pathlib import Path
from random import Random
from statistics import median
from time import process_time
from typing import NamedTuple

from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Work, Write
from halfmoon.hot import NATIVE
from halfmoon.instant import instant
from halfmoon.model import ConsumeType, MessageModel, Subscription
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.settings import StoreSettings
from halfmoon.wire.bodies import ConsumeFromWhere, ConsumerData, HeartbeatData, SubscriptionData, to_json
from halfmoon.wire.command import Command, decode, encode, request_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.record import BatchItem, encode_batch
from halfmoon.wire.table import Header

TOPIC, BATCH, NOW_MS = "Filtered", 32, 1_700_000_000_000
PULL_CODES = (0, 19, 20, 21)
"""Of a pull's answers those that say where to go on; 0 is also the answer to the other requests."""


class Row(NamedTuple):
    """What it shows, the groups, their expression, and whether each group has an expression of its own."""

    name: str
    groups: int
    expression: str
    different: bool = False


ROWS = [
    Row("1 % match, 1 group", 1, "a >= 99"),
    Row("1 %, 3 groups, the same", 3, "a >= 99"),
    Row("1 %, 10 groups, the same", 10, "a >= 99"),
    Row("1 %, 10 groups, different", 10, "a >= 99", different=True),
    Row("50 % match, 1 group", 1, "a >= 50"),
    Row("50 %, 10 groups, the same", 10, "a >= 50"),
    Row("50 %, 10 groups, different", 10, "a >= 50", different=True),
    Row("1 %, 1 group, `CONTAINS` in 2,000 characters", 1, "text CONTAINS 'v99'"),
    Row("1 %, 2 groups, the same `CONTAINS`", 2, "text CONTAINS 'v99'"),
    Row("1 %, 10 groups, the same `CONTAINS`", 10, "text CONTAINS 'v99'"),
    Row("1 %, 20 groups, the same `CONTAINS`", 20, "text CONTAINS 'v99'"),
    Row("1 %, 30 groups, the same `CONTAINS`", 30, "text CONTAINS 'v99'"),
]


class Core:
    """A broker core, a connection for each group, and the processor time that the core took."""

    def __init__(self, root: Path, row: Row, *, bits: bool) -> None:
        self.seconds = 0.0
        self.broker = Broker(BrokerSettings(filter_bitmap=bits), StoreSettings(), RealDisk(str(root)), Random(1), instant(NOW_MS))
        self.broker.start(instant(NOW_MS))
        for peer in range(row.groups):
            self.broker.connected(peer, f"10.0.0.{peer}:5000", instant(NOW_MS))
            own = f" AND other{peer} IS NULL" if row.different else ""
            self.ask(peer, HeartBeat(), to_json(heartbeat(peer, row.expression + own)))

    def ask(self, peer: int, header: Header, body: bytes = b"") -> Command:
        """Return the answer to a request, after as many turns as it takes. Raises RuntimeError when it is refused."""
        frame, inbox = encode(request_command(header, body)), Inbox()
        begin = process_time()
        self.broker.feed(peer, frame)
        chunks = self._turns()
        self.seconds += process_time() - begin
        inbox.feed(b"".join(chunks))
        commands = [decode(head, bytes(content), serialization) for serialization, head, content in inbox.frames()]
        (reply,) = (command for command in commands if command.is_response)  # others tell members of a group about each other
        if reply.code not in PULL_CODES:
            raise RuntimeError(f"refused: {reply}")
        return reply

    def _turns(self) -> list[bytes]:
        chunks: list[bytes] = []
        while True:
            more = self.broker.commit(instant(NOW_MS))
            effects = self.broker.effects()
            for effect in effects:
                if isinstance(effect, Write):
                    chunks += effect.chunks
                elif isinstance(effect, Work):
                    effect.done(effect.run(), instant(NOW_MS))
            if not more and not effects:
                return chunks

    def send(self, batches: list[bytes], end: int) -> float:
        """Store messages up to an offset; return the processor time, seconds."""
        self.seconds = 0.0
        header = SendMessageV2(
            producer_group="P", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=1, queue_id=0, sys_flag=0,
            born_timestamp=NOW_MS, flag=0, properties="", reconsume_times=0, unit_mode=False, batch=True,
        )  # fmt: skip
        for batch in batches:
            self.ask(0, header, batch)
        assert self.broker.store.queue_max(TOPIC, 0) == end
        return self.seconds

    def read(self, groups: int, start: int, end: int) -> tuple[float, int]:
        """Pull what lies between two offsets for each group; return the processor time, seconds, and how many messages matched."""
        self.seconds, matched = 0.0, 0
        for peer in range(groups):
            offset = start
            while offset < end:
                header = PullMessage(
                    consumer_group=f"G{peer}", topic=TOPIC, queue_id=0, queue_offset=offset, max_msg_nums=32, sys_flag=0,
                    commit_offset=0, suspend_timeout_millis=0, sub_version=0,
                )  # fmt: skip
                reply = self.ask(peer, header)
                offset = reply.header(PullMessageReply).next_begin_offset
                at = 0
                while at < len(reply.body):
                    at += int.from_bytes(reply.body[at : at + 4], "big")
                    matched += 1
        return self.seconds, matched


def heartbeat(peer: int, expression: str) -> HeartbeatData:
    """Return the heartbeat of the only member of a group."""
    subscriptions = [SubscriptionData.of(Subscription(TOPIC, expression, "SQL92", version=1))]
    where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    group = ConsumerData(f"G{peer}", ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING, where, subscriptions)
    return HeartbeatData(client_id=f"client-{peer}", consumer_data_set=[group])


def batches_of(start: int, count: int, *, with_text: bool) -> list[bytes]:
    """Return messages with bodies of 256 bytes and seven properties, ``a`` from 0 to 99; or eight: a text that ends with it."""
    messages = []
    for number in range(start, start + count):
        properties = (
            f"KEYS\x01order-{number}\x02UNIQ_KEY\x01{number:032X}\x02a\x01{number % 100}\x02b\x01y{number % 5}\x02"
            f"WAIT\x01true\x02TAGS\x01t\x02region\x01eu\x02"
        )
        if with_text:
            properties += f"text\x01{'v' * 1998}{number % 100:02}\x02"
        messages.append(BatchItem(bytes(256), properties.encode(), 0))
    return [encode_batch(messages[at : at + BATCH]) for at in range(0, count, BATCH)]


def measure(row: Row, messages: int, runs: int) -> str:
    """Return a row of the table."""
    sends: list[list[float]] = [[], []]
    reads: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory(prefix="halfmoon-bloom-") as folder:
        cores = [Core(Path(folder) / str(bits), row, bits=bits) for bits in (False, True)]
        for start in range(0, (runs + 1) * messages, messages):
            batches, matches = batches_of(start, messages, with_text="text" in row.expression), set()
            for core, send_costs, read_costs in zip(cores, sends, reads, strict=True):
                send_costs.append(core.send(batches, start + messages) * 1e6 / messages)
                seconds, matched = core.read(row.groups, start, start + messages)
                read_costs.append(seconds * 1e6 / messages)
                matches.add(matched)
            assert len(matches) == 1, f"the bits changed what matches: {matches}"
    send, read = ([median(costs[1:]) for costs in pair] for pair in (sends, reads))
    pairs = (send, [cost / row.groups for cost in read], [sum(both) for both in zip(send, read, strict=True)])
    return f"| {row.name} | " + " | ".join(f"{without:.2f} → {with_bits:.2f}" for without, with_bits in pairs) + " |"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=8192, help="messages a round, a multiple of 32")
    parser.add_argument("--runs", type=int, default=5, help="rounds that count")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    chosen = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {'native' if NATIVE else 'pure'};",
        end=" ",
    )
    print(f"medians of {chosen.runs} rounds of {chosen.messages:,} messages, without the bits → with them\n")
    print("| matching, groups, expressions | send, us | one group's pulls, us | together, us |\n|---|--:|--:|--:|", flush=True)
    for row in ROWS:
        if chosen.only in row.name:
            print(measure(row, chosen.messages, chosen.runs), flush=True)


if __name__ == "__main__":
    main()
