"""Prices of delayed messages: how late they are when many are due at once, and what a million that wait cost.

Run ``python benchmarks/delay.py accuracy|burst|parked [COUNT] [DIR]``; the figures are printed, nothing is asserted.

* ``accuracy``: 10,000 messages ask for the same second through `halfmoon serve`, spread over its milliseconds; how late each was
  stored, and how long a small request of another connection waited meanwhile. ``burst``: all ask for the very same millisecond.
* ``parked``: a store with 1,000,000 messages that wait for points in time within 30 days; memory of `halfmoon serve` on it above
  one on an empty store, and how long it takes to be ready, after a clean stop and after a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from halfmoon import Admin, Message, Producer, PullConsumer
from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Work
from halfmoon.instant import instant
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store import StoreSettings
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.offset import GetMaxOffset

TOPIC = "reminders"
DAY_MS = 86_400_000


class Serve:
    """`halfmoon serve` on a directory."""

    def __init__(self, root: Path) -> None:
        command = [str(Path(sys.executable).with_name("halfmoon")), "serve", "--data", str(root), "--json"]
        command += ["--nameserver-port", "0", "--broker-port", "0"]
        begin = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())
        self.ready_s = time.perf_counter() - begin
        self.nameserver, self.broker = found["nameserver"], found["broker"]

    def memory_mb(self) -> tuple[float, float]:
        """Return anonymous and resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        found = {line.split(":")[0]: line.split()[1] for line in status if line.startswith(("RssAnon", "VmRSS"))}
        return int(found["RssAnon"]) / 1024, int(found["VmRSS"]) / 1024

    def cpu_s(self) -> float:
        """Return the processor time it took so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, *, kill: bool = False) -> None:
        """Stop it, or kill it."""
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait()


class Bystander(threading.Thread):
    """Asks a small question over and over on a connection of its own; ``waits_ms`` are how long each took."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)))
        self.waits_ms: list[float] = []
        self.ends = False

    def run(self) -> None:
        frame = encode(request_command(GetMaxOffset(topic=TOPIC, queue_id=0), b"", opaque=1))
        while not self.ends:
            begin = time.perf_counter()
            self._connection.sendall(frame)
            left = struct.unpack(">i", self._connection.recv(4, socket.MSG_WAITALL))[0]
            self._connection.recv(left, socket.MSG_WAITALL)
            self.waits_ms.append((time.perf_counter() - begin) * 1000)
            time.sleep(0.001)


def accuracy(root: Path, count: int, *, burst: bool = False) -> None:
    """Print how late messages are that are due in the same second."""
    server = Serve(root)
    try:
        with Admin(nameserver=server.nameserver) as admin, Producer(group="P", nameserver=server.nameserver) as producer:
            admin.create_topic(TOPIC, queue_count=4)
            due = time.time_ns() // 1_000_000 // 1000 * 1000 + 5000 + 2 * count
            for start in range(0, count, 500):
                futures = []
                for number in range(start, min(start + 500, count)):
                    at = due if burst else due + number % 1000
                    futures.append(producer.send_async(Message(TOPIC, b"%d" % at, deliver_at=at)))
                for future in futures:
                    future.result()
            parked = (due - time.time_ns() // 1_000_000) / 1000
            assert parked > 0, f"parking {count} messages took too long"
            time.sleep(max(0, parked - 0.5))
            other, cpu = Bystander(server.broker), server.cpu_s()
            other.start()
            with PullConsumer(group="C", nameserver=server.nameserver) as consumer:
                queues = consumer.queues(TOPIC)
                consumer.assign(queues)
                for queue in queues:
                    consumer.seek(queue, 0)
                time.sleep(4)
                other.ends = True
                other.join()
                cpu = server.cpu_s() - cpu
                late: list[int] = []
                while len(late) < count and (found := consumer.poll(1000)):
                    late += [message.store_ms - int(message.body) for message in found]
        late.sort()
        waits = sorted(other.waits_ms)
        print(f"{len(late):,} of {count:,} delivered; early: {sum(ms < 0 for ms in late)}; late by ms:", end=" ")
        print(f"median {late[len(late) // 2]}, p99 {late[len(late) * 99 // 100]}, most {late[-1]}; broker {cpu:.2f} s of CPU")
        print(
            f"another connection waited: median {waits[len(waits) // 2]:.2f} ms, p99 {waits[len(waits) * 99 // 100]:.2f} ms,",
            end=" ",
        )
        print(f"most {waits[-1]:.2f} ms")
    finally:
        server.end()


def fill(root: Path, count: int) -> None:
    """Park messages in this process, without sockets."""
    now = time.time_ns() // 1_000_000
    broker = Broker(BrokerSettings(), StoreSettings(), RealDisk(str(root)), Random(1), instant(now))
    broker.start(instant(now))
    random, host, delays = Random(1), bytes(8), broker.delays
    broker.topics.ensure(TOPIC, 4, now)
    begin = time.process_time()
    for number in range(count):
        properties = b"UNIQ_KEY\x017F00000100002A9F0000%012d\x02CLUSTER\x01DefaultCluster\x02" % number
        draft = (bytes(100), properties, 0, 0, now, host, 0, 0, 0)
        delays.timer.park(TOPIC, number % 4, now + DAY_MS // 24 + random.randrange(30 * DAY_MS), draft, now)
        if number % 1000 == 0:
            carry_out(broker, now)
    print(f"parked {count:,} in {time.process_time() - begin:.1f} s of CPU")
    broker.stop(instant(now))
    carry_out(broker, now)
    broker.close(instant(now))


def carry_out(broker: Any, now: int) -> None:
    """Run what the core left."""
    broker.tick(instant(now))
    while effects := broker.effects():
        for effect in effects:
            if isinstance(effect, Work):
                effect.done(effect.run(), instant(now))


def parked(root: Path, count: int) -> None:
    """Print what messages that wait cost."""
    empty = Serve(root.with_name("empty"))
    time.sleep(2)
    idle = empty.memory_mb()
    empty.end()
    subprocess.run([sys.executable, __file__, "fill", str(count), str(root)], check=True)
    for how in ("a clean stop", "a kill"):
        server = Serve(root)
        cpu = server.cpu_s()
        time.sleep(2)
        memory = server.memory_mb()
        print(
            f"after {how}: ready in {server.ready_s:.2f} s ({cpu:.2f} s of CPU); above an idle broker of {idle[0]:.0f} MB:", end=" "
        )
        print(f"{memory[0] - idle[0]:.1f} MB anonymous, {memory[1] - idle[1]:.1f} MB resident (with the pages of files)")
        server.end(kill=how == "a clean stop")


def main() -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("accuracy", "burst", "parked", "fill"), help="what to measure; fill only makes the store")
    parser.add_argument("count", type=int, nargs="?", help="messages")
    parser.add_argument("directory", type=Path, nargs="?", help="an empty directory to use")
    given = parser.parse_args()
    part: str = given.part
    count: int = given.count or (10_000 if part in ("accuracy", "burst") else 1_000_000)
    base: Path = given.directory or Path(tempfile.mkdtemp(prefix="delay-")) / "store"
    if part == "fill":
        fill(base, count)
        return
    try:
        if part == "parked":
            parked(base, count)
        else:
            accuracy(base, count, burst=part == "burst")
    finally:
        shutil.rmtree(base, ignore_errors=True)
        shutil.rmtree(base.with_name("empty"), ignore_errors=True)


if __name__ == "__main__":
    main()
