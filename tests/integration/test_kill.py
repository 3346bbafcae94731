"""A broker killed with -9 under load loses nothing that it acknowledged, over and over on the same directory."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.check.fsck import fsck
from halfmoon.wire.command import decode, encode, request_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.record import decode_records
from tests.interop.process import free_port

TOPIC = "BenchmarkTest"
KILLS = 8
QUEUES = 4
WINDOW = 16


class Process:
    """A broker of its own, started, killed and started again on one directory."""

    def __init__(self, data, port, flush):
        self.port = port
        self.command = [
            sys.executable, "-m", "halfmoon.cli.main", "broker", "--nameserver", "127.0.0.1:1", "--data", str(data),
            "--broker-port", str(port), "--set", f"flushDiskType={flush}", "--set", "mappedFileSizeCommitLog=1048576",
        ]  # fmt: skip
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert "ready" in self.process.stdout.readline()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


class Sender(threading.Thread):
    """Sends without end, `WINDOW` at a time, reconnecting; ``acked`` keeps what each message was answered."""

    def __init__(self, port, name):
        super().__init__(daemon=True)
        self.port, self.label = port, name
        self.acked: dict[bytes, tuple[int, int, str]] = {}
        self.ended = threading.Event()
        self.sent = 0

    def run(self):
        while not self.ended.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    connection.settimeout(5)
                    self.talk(connection)
            except OSError:
                time.sleep(0.01)

    def talk(self, connection):
        inbox, flying = Inbox(), {}
        while not self.ended.is_set():
            while len(flying) < WINDOW:
                body = f"{self.label}-{self.sent}".encode()
                header = SendMessageV2(
                    producer_group="P", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=4,
                    queue_id=self.sent % QUEUES, sys_flag=0, born_timestamp=1, flag=0, properties="WAIT\x01true\x02",
                )  # fmt: skip
                flying[self.sent] = body
                connection.sendall(encode(request_command(header, body, opaque=self.sent, serialization=self.sent % 2)))
                self.sent += 1
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionError
            inbox.feed(data)
            for serialization, head, body in inbox.frames():
                reply = decode(head, body, serialization)
                if reply.code == 0:
                    where = reply.header(SendMessageReply)
                    self.acked[flying[reply.opaque]] = (where.queue_id, where.queue_offset, where.msg_id)
                del flying[reply.opaque]


def under_load(senders):
    """Wait until much more was acknowledged, and then for a moment."""
    wanted, end = sum(len(sender.acked) for sender in senders) + 4 * WINDOW, time.monotonic() + 60
    while sum(len(sender.acked) for sender in senders) < wanted:
        assert time.monotonic() < end, "nothing is acknowledged"
        time.sleep(0.005)
    time.sleep(random.uniform(0, 0.1))


def everything_stored(port) -> list:
    """Read all queues with plain pulls."""
    found = []
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        inbox = Inbox()
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                pull = PullMessage(
                    consumer_group="G", topic=TOPIC, queue_id=queue_id, queue_offset=offset, max_msg_nums=32, sys_flag=4,
                    commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*", expression_type="TAG",
                )  # fmt: skip
                connection.sendall(encode(request_command(pull)))
                frames = []
                while not frames:
                    inbox.feed(connection.recv(1 << 20))
                    frames = inbox.frames()
                reply = decode(frames[0][1], frames[0][2], frames[0][0])
                offset = reply.header(PullMessageReply).next_begin_offset
                if reply.code == 19:
                    break
                found += decode_records(bytes(reply.body))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_kills_under_load_lose_nothing_acknowledged(tmp_path, flush):
    process = Process(tmp_path / "store", free_port(), flush)
    senders = [Sender(process.port, f"s{k}") for k in range(2)]
    for sender in senders:
        sender.start()
    for _ in range(KILLS):
        under_load(senders)
        process.kill()
        process.start()
    under_load(senders)
    for sender in senders:
        sender.ended.set()
    for sender in senders:
        sender.join(60)

    stored = everything_stored(process.port)
    process.stop()

    places = {message.body: (message.queue_id, message.queue_offset, message.offset_msg_id) for message in stored}
    acked = {body: where for sender in senders for body, where in sender.acked.items()}
    assert len(acked) > 20 * KILLS
    assert {body: places.get(body) for body in acked} == acked
    found = list(fsck(RealDisk(tmp_path / "store")))
    for queue_id in range(QUEUES):
        offsets = [message.queue_offset for message in stored if message.queue_id == queue_id]
        missing = sorted(set(range(offsets[-1])) - set(offsets))
        assert not missing, f"queue {queue_id} lacks {missing}, which nobody was told of; fsck says {found}"
        assert offsets == list(range(len(offsets)))
    assert found == []
