"""What one message costs in a turn of the broker core: bytes in, bytes out, a real disk, no sockets.

    python benchmarks/turn.py [--messages 200000] [--profile]

Prints CPU microseconds a message for each kind of turn, the median of five rounds. Compare on one machine only, and in one run.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
from collections.abc import Callable
from random import Random
from time import process_time, time

from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Work
from halfmoon.instant import instant
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.settings import StoreSettings
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.pull import PullMessage
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.record import BatchItem, encode_batch

TOPIC = "BenchmarkTest"


def send_frames(
    connections: int, window: int, size: int, serialization: int, batch: int = 1, *, transactional: bool = False
) -> list[bytes]:
    """Return what each connection sends in one turn."""
    found = []
    for c in range(connections):
        frames = []
        for w in range(window):
            pair = "TRAN_MSG\x01true\x02PGROUP\x01P\x02" if transactional else ""
            pair += f"UNIQ_KEY\x017F000001{c:04X}{w:020X}\x02"
            header = SendMessageV2(
                producer_group="P", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=4, queue_id=(c + w) % 4,
                sys_flag=4 if transactional else 0, born_timestamp=int(time() * 1000), flag=0,
                properties="WAIT\x01true" if batch > 1 else pair + "WAIT\x01true\x02",
                reconsume_times=0, unit_mode=False, batch=batch > 1,
            )  # fmt: skip
            body = bytes(size)
            if batch > 1:
                keys = [f"UNIQ_KEY\x017F000001{c:04X}{w:010X}{number:010X}\x02" for number in range(batch)]
                body = encode_batch([BatchItem(bytes(size), key.encode()) for key in keys])
            command = request_command(header, body, opaque=c * 1000 + w, serialization=serialization)
            command.code = 320 if batch > 1 else 310
            frames.append(encode(command))
        found.append(b"".join(frames))
    return found


def pull_frame(queue_id: int, offset: int) -> bytes:
    """Return one pull of 32 messages."""
    header = PullMessage(
        consumer_group="G", topic=TOPIC, queue_id=queue_id, queue_offset=offset, max_msg_nums=32, sys_flag=4, commit_offset=0,
        suspend_timeout_millis=0, sub_version=0, subscription="*", expression_type="TAG",
    )  # fmt: skip
    return encode(request_command(header, opaque=offset))


def turns(broker: Broker, chunks: list[bytes], count: int) -> int:
    """Run turns in which every connection brings its chunk; return how many turns."""
    now = int(time() * 1000)
    for turn in range(count):
        for peer, chunk in enumerate(chunks):
            broker.feed(peer, chunk)
        while broker.commit(instant(now + turn // 100)):
            broker.effects()
        for effect in broker.effects():
            if isinstance(effect, Work):
                effect.done(effect.run(), instant(now))
    return count


def pulls(broker: Broker, rounds: int) -> int:
    """Pull the backlog of four queues; return how many messages that was."""
    ends = [broker.store.queue_max(TOPIC, q) for q in range(4)]
    now, count = int(time() * 1000), 0
    for number in range(rounds):
        for queue_id in range(4):
            offset = number * 32 % max(1, ends[queue_id] - 32)
            broker.feed(queue_id, pull_frame(queue_id, offset))
        broker.commit(instant(now))
        broker.effects()
        count += 128
    return count


def transactions(broker: Broker, connections: int, window: int, count: int) -> float:
    """Run turns in which half messages come and turns in which they are committed; return CPU seconds of both."""
    spent = 0.0
    halves = send_frames(connections, window, 1024, JSON, transactional=True)

    def turn(chunks: list[bytes]) -> None:
        nonlocal spent
        begin = process_time()
        turns(broker, chunks, 1)
        spent += process_time() - begin

    index = broker.transactions.index
    turns(broker, halves, 1)
    turns(broker, [], 5)  # until queues are made
    left = index.pending_count
    for _ in range(count):
        first, chunks = index.end, []
        turn(halves)
        for c in range(connections):
            frames = []
            for number in range(first + c * window, first + (c + 1) * window):
                half = index.half(number)
                assert half is not None
                completion = EndTransaction(
                    producer_group="P", tran_state_table_offset=number, commit_log_offset=half.physical_offset,
                    commit_or_rollback=8, msg_id=f"7F000001{number:024X}", transaction_id=f"7F000001{number:024X}",
                )  # fmt: skip
                frames.append(encode(request_command(completion, opaque=number, oneway=True)))
            chunks.append(b"".join(frames))
        turn(chunks)
    assert index.pending_count == left, "each round commits its own half messages"
    return spent


def median_cost(run: Callable[[], int]) -> float:
    """Return the median of CPU microseconds a message over five rounds, after one that is not counted."""
    costs = []
    for _ in range(6):
        begin = process_time()
        count = run()
        costs.append((process_time() - begin) * 1e6 / count)
    return statistics.median(costs[1:])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=40_000, help="messages a round")
    arguments.add_argument("--profile", action="store_true", help="also show where the time goes (4 x 16, JSON)")
    chosen = arguments.parse_args()
    kinds = {
        "send 4 x 16, 1 KiB, JSON": (4, 16, 1024, JSON, 1),
        "send 4 x 16, 1 KiB, ROCKETMQ": (4, 16, 1024, ROCKETMQ, 1),
        "send 8 x 64, 100 B, ROCKETMQ": (8, 64, 100, ROCKETMQ, 1),
        "send 1 x 16, 1 KiB, JSON": (1, 16, 1024, JSON, 1),
        "send 1 x 1, 1 KiB, JSON": (1, 1, 1024, JSON, 1),
        "batch 4 x 4 of 32 x 256 B, ROCKETMQ": (4, 4, 256, ROCKETMQ, 32),
    }
    with tempfile.TemporaryDirectory() as root:
        broker = Broker(BrokerSettings(), StoreSettings(), RealDisk(root), Random(1), instant(int(time() * 1000)))
        for peer in range(8):
            broker.connected(peer, f"127.0.0.1:{5000 + peer}", instant(int(time() * 1000)))
        for name, (connections, window, size, serialization, batch) in kinds.items():
            chunks = send_frames(connections, window, size, serialization, batch)
            each = connections * window * batch
            count = max(1, chosen.messages // each)
            print(f"{name:36} {median_cost(lambda: turns(broker, chunks, count) * each):8.2f} us")  # noqa: B023
        print(f"{'pull 4 x 32, mixed sizes':36} {median_cost(lambda: pulls(broker, chosen.messages // 128)):8.2f} us")
        for connections, window in (4, 16), (1, 1):
            each = connections * window
            count = max(1, chosen.messages // 4 // each)
            costs = [transactions(broker, connections, window, count) * 1e6 / each / count for _ in range(6)]
            print(f"{f'half and commit {connections} x {window}, 1 KiB, JSON':36} {statistics.median(costs[1:]):8.2f} us")
        if chosen.profile:
            chunks = send_frames(4, 16, 1024, JSON)
            profile = cProfile.Profile()
            profile.runcall(turns, broker, chunks, 1000)
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
