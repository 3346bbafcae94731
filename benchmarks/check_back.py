"""Prices of check-back: one round over what is pending, and a start of the whole broker with a million pending half messages.

Run ``python benchmarks/check_back.py round|restart|lost [DIR]``; the figures are printed, nothing is asserted.

* ``round``: 10 pending among 1,000,000 and 10,000,000 decided half messages, all ten asked about: time of the round, of its longest
  turn, and how many checks were written. The broker's core runs in this process, without sockets.
* ``restart``: `halfmoon serve` on a directory with 1,000,000 pending, whose last process was killed: time until it is ready, until
  a producer that connects then gets its first check, and anonymous memory.
* ``lost``: the second phase of 40 half messages is never sent; how long after its send each is consumed, where the minimum age is
  1 s and the interval of the rounds 2 s.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.transactions import GROUPS
from halfmoon import Admin, ConsumeFrom, LocalTransactionState, Message, PullConsumer, TransactionProducer
from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Work, Write
from halfmoon.instant import instant
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store import StoreSettings
from halfmoon.wire.bodies import HeartbeatData, ProducerData, to_json
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.client import HeartBeat

INTERVAL_MS = 60_000


def heartbeat(groups: list[str]) -> bytes:
    """The frame with which a producer of these groups says that it is there."""
    data = HeartbeatData(client_id="bench", producer_data_set=[ProducerData(group) for group in groups])
    return encode(request_command(HeartBeat(), to_json(data), opaque=1))


def fill(root: Path, count: int, pending: int, *, spread: bool) -> None:
    """Make a store with half messages, in a process of its own that ends without stopping it."""
    shutil.rmtree(root, ignore_errors=True)
    script = Path(__file__).with_name("transactions.py")
    command = [sys.executable, str(script), "fill", str(root), str(count), str(pending), str(int(spread))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def one_round(root: Path) -> None:
    """Open the broker's core and let one round happen."""
    now = int(time.time() * 1000)
    settings = BrokerSettings(transaction_check_interval_ms=INTERVAL_MS)
    broker = Broker(settings, StoreSettings(message_index_enable=False), RealDisk(root), Random(1), instant(now))
    broker.start(instant(now))
    broker.connected(1, "10.0.0.1:5000", instant(now))
    broker.feed(1, heartbeat(GROUPS))
    broker.commit(instant(now))
    broker.effects()
    for rounds in range(3):
        checks, longest, spent, written = broker.transactions.checks, 0.0, 0.0, 0
        at = instant(int(checks.next_round_at))
        before = checks.counters.sent
        while checks.next_round_at <= at.steady or checks.due() <= at.steady:
            begin = time.perf_counter()
            broker.transactions.tick(at)
            took = time.perf_counter() - begin
            spent, longest = spent + took, max(longest, took)
        for effect in broker.effects():
            if isinstance(effect, Write):
                written += sum(len(chunk) for chunk in effect.chunks)
            elif isinstance(effect, Work):
                effect.done(effect.run(), at)
        sent = checks.counters.sent - before
        print(
            f"  round {rounds + 1}: {spent * 1e3:7.2f} ms, longest turn {longest * 1e3:5.2f} ms, {sent} checks, {written:,} bytes;"
            f" {broker.transactions.index.pending_count:,} pending of {broker.transactions.index.end:,}"
        )


def round_part(root: Path) -> None:
    """Print what a round costs."""
    for count in (1_000_000, 10_000_000):
        print(f"10 pending among {count:,} half messages")
        fill(root, count, 10, spread=True)
        subprocess.run([sys.executable, __file__, "one-round", str(root)], check=True)
    shutil.rmtree(root, ignore_errors=True)


def restart_part(root: Path) -> None:
    """Print what a start with a million pending costs."""
    fill(root, 1_000_000, 1_000_000, spread=False)
    command = [str(Path(sys.executable).with_name("halfmoon")), "serve", "--data", str(root), "--nameserver-port", "0"]
    command += ["--broker-port", "0", "--json", "--set", "transactionCheckInterval=5000", "--set", "transactionTimeOut=1000"]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = time.perf_counter() - begin
        port = int(line.split('"broker"')[1].split('"')[1].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(heartbeat(GROUPS[:1]))
            connection.settimeout(60)
            seen = b""
            while b'"code":39' not in seen:
                seen = seen[-64:] + connection.recv(65_536)
            first = time.perf_counter() - begin
        status = Path(f"/proc/{process.pid}/status").read_text()
        anonymous = next(part.split()[1] for part in status.splitlines() if part.startswith("RssAnon"))
        print(f"ready after {ready:.2f} s; first check after {first:.2f} s (the interval is 5 s);", end=" ")
        print(f"RssAnon {int(anonymous) / 1024:.0f} MB")
    finally:
        process.kill()
        process.wait()
    shutil.rmtree(root, ignore_errors=True)


def lost_part(root: Path) -> None:
    """Print how late messages are whose second phase was lost."""
    command = [str(Path(sys.executable).with_name("halfmoon")), "serve", "--data", str(root), "--nameserver-port", "0"]
    command += ["--broker-port", "0", "--json", "--set", "transactionCheckInterval=2000", "--set", "transactionTimeOut=1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        nameserver = json.loads(process.stdout.readline())["nameserver"]
        with Admin(nameserver=nameserver) as admin:
            admin.create_topic("lost", queue_count=1)
        sent: dict[str, float] = {}
        waited: list[float] = []
        producer = TransactionProducer(group="P_bench", nameserver=nameserver, check=lambda message: LocalTransactionState.COMMIT)
        consumer = PullConsumer(group="C_bench", nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
        with producer, consumer:
            consumer.assign(consumer.queues("lost"))
            random, end = Random(1), time.monotonic() + 60
            while len(waited) < 40 and time.monotonic() < end:
                if len(sent) < 40:
                    with producer.half(Message("lost", b"x")) as half:
                        half.leave()
                    sent[half.message_id] = time.monotonic()
                for message in consumer.poll(int(random.uniform(50, 150))):
                    waited.append(time.monotonic() - sent[message.msg_id])
        waited.sort()
        print(f"{len(waited)} of {len(sent)}: {waited[0]:.2f} to {waited[-1]:.2f} s after the send (at most 1 + 2 s promised)")
    finally:
        process.kill()
        process.wait()
    shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Run the part that is asked for."""
    part, *rest = sys.argv[1:] or ["round"]
    root = Path(rest[0]) if rest else Path(tempfile.mkdtemp(prefix="halfmoon-bench-"))
    {"round": round_part, "one-round": one_round, "restart": restart_part, "lost": lost_part}[part](root)


if __name__ == "__main__":
    main()
