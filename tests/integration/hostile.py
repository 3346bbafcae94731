"""Frames as nobody sends them, and the broker core under them with each twin: the same answers, alive, bounded memory.

    python -m tests.integration.hostile [--bytes 1000000000] [--seed 1]

Two processes make the same bytes from the same seed and feed them to a broker core each, one with the compiled twin, one without.
They tell after every few turns what they answered, as a digest, and how much memory they hold; they are compared line by line.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from halfmoon import hot
from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Close, Work, Write
from halfmoon.instant import instant
from halfmoon.ports import DiskUsage
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.settings import StoreSettings
from halfmoon.wire import headers  # noqa: F401  (fills the table)
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command, encode
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.table import REQUESTS, Header, request_type

START_MS = 1_700_000_000_000
TOPICS = [b"T", b"T", b"T", b"U", b"RMQ_SYS_TRANS_HALF_TOPIC", b"SCHEDULE_TOPIC_XXXX", b"%RETRY%g", b"", b"\xc3\xa9", b"a b"]
TURNS_A_LINE, TURNS_A_LOOK = 2000, 100
GROWTH_MB = 96
"""Anonymous memory that a broker may take from its first line on: frames that are not whole (48 MB), held half messages, tables."""

TEXTS = [
    b"UNIQ_KEY\x01%d\x02WAIT\x01true\x02", b"UNIQ_KEY\x01%d\x02KEYS\x01a b\x02TAGS\x01t\x02",
    b"TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01%d\x02", b"TRAN_MSG\x01true\x02", b"DELAY\x013\x02", b"DELAY\x01999\x02",
    b"TIMER_DELAY_MS\x01%d\x02", b"INNER_REPEAT\x011\x02UNIQ_KEY\x01%d\x02", b"garbage", b"\x01\x02", b"\x02", b"",
    b"K\x01", b"A\x01\xff\x02", b"p" * 33_000, b"CLUSTER\x01x\x02REAL_TOPIC\x01T\x02",
]  # fmt: skip
# No number has a fraction or an exponent: the compiled twin leaves those to the general decoder, and what that stores comes behind
# the others of its turn (decision 16).
NUMBERS = [
    b"0", b"0", b"0", b"1", b"2", b"-1", b"8", b"12", b"2147483647", b"2147483648", b"-2147483649", b"9223372036854775807",
    b"9223372036854775808", b"", b"x", b"007", b" 1", b"99999",
]  # fmt: skip
OTHERS = [
    b"g", b"T", b"*", b"a = 1", b"a IS NULL AND (", b"true", b"false", b"SQL92", b"TAG", b"t", b"%d", b"\xed\xa0\x80", b"x" * 300,
]  # fmt: skip
CHANGES = bytes(set(range(256)) - set(b".eE"))
LIES = [
    b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\0\0\1", b"\0\xff\xff\xff", b"\xff\xff", b"\x7f\xff",
    b"\0",
]  # fmt: skip
WANTED = {"topic": TOPICS, "b": TOPICS, "properties": TEXTS, "i": TEXTS}
QUIET = {request_type(GetBrokerRuntimeInfo).code}
"""Requests whose answers tell of the twin itself."""

BODIES = [0, 10, 10, 100, 100, 100, 100, 500, 500, 500, 1000, 4000]
COMMON = [310, 310, 310, 310, 310, 310, 310, 10, 320, 320, 11, 11, 37, 36, 34, 14, 31040]


def choices(header: type[Header]) -> list[tuple[bytes, list[bytes], list[bytes]]]:
    """Return the fields of a request of the table, each with usual values and with all that it is tried with."""
    found = []
    for field, kind in zip(header.__struct_encode_fields__, header.__annotations__.values()):
        text, wanted = str(kind), WANTED.get(field)
        if wanted is not None:
            found.append((field.encode(), wanted[:3], wanted))
        elif "int" in text or "I32" in text or "I64" in text:
            found.append((field.encode(), NUMBERS[:5], NUMBERS))
        elif "bool" in text:
            found.append((field.encode(), [b"false"], [b"false", b"true", b"TRUE", b"x", b""]))
        else:
            found.append((field.encode(), OTHERS[:3], OTHERS))
    return found


def values(random: Random, code: int, usual: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield the fields of a request, of the right kind where it is to be a usual one."""
    for field, some, every in CHOICES[code]:
        if usual or random.random() > 0.05:
            value = random.choice(some if usual else every)
            yield field, value.replace(b"%d", b"%032d" % random.randrange(1 << 40)) if b"%d" in value else value


def inner(random: Random) -> bytes:
    """Return the body of a batch, whose sizes may disagree."""
    found = bytearray()
    for _ in range(random.randrange(6)):
        body, text = random.randbytes(random.randrange(200)), random.choice(TEXTS[:8])
        sizes = [22 + len(body) + len(text), 0, 0, 0, len(body)]
        lie = random.random()
        if lie < 0.2:
            sizes[random.choice([0, 0, 4, 3])] += random.choice([-1, 1, -22, 1 << 30, 4])
        found += b"".join((size & 0xFFFFFFFF).to_bytes(4, "big") for size in sizes)
        found += body + (len(text) + (lie > 0.95)).to_bytes(2, "big") + text
    return bytes(found)


def frame(random: Random) -> bytes:
    """Return one frame, whole and with lengths that are true."""
    usual = random.random() < 0.5
    code = random.choice(COMMON) if random.random() < 0.85 else random.choice(CODES)
    fields = list(values(random, code, usual))
    body = inner(random) if code == 320 else random.randbytes(random.choice(BODIES))
    opaque = random.randrange(1 << 31)
    flag = 0 if usual else random.choice([0, 0, 0, 1, 2, 3, -1])
    if random.random() < 0.5:
        pairs = b"".join(len(k).to_bytes(2, "big") + k + len(v).to_bytes(4, "big") + v for k, v in fields)
        head = code.to_bytes(2, "big") + b"\0" + (409).to_bytes(2, "big") + opaque.to_bytes(4, "big")
        head += (flag & 0xFFFFFFFF).to_bytes(4, "big") + bytes(4) + len(pairs).to_bytes(4, "big") + pairs
        return whole(head, body, ROCKETMQ)
    texts = {k.decode(): v.decode("utf-8", "surrogateescape") for k, v in fields}
    found = {"code": code, "extFields": texts, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 409}
    if random.random() < 0.2:  # another order
        found = dict(random.sample(list(found.items()), len(found)))
    head = json.dumps(found, separators=(",", ":"), ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogateescape")
    return whole(head, body, JSON)


def whole(head: bytes, body: bytes, serialization: int) -> bytes:
    """Return a frame of a header and a body."""
    return (4 + len(head) + len(body)).to_bytes(4, "big") + (serialization << 24 | len(head)).to_bytes(4, "big") + head + body


def damaged(random: Random, data: bytes) -> bytes:
    """Return a frame with bytes changed, removed, repeated, cut off or replaced by a length that lies."""
    found = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        at = random.randrange(random.choice([8, 60, 400, len(found) + 1]) or 1) % max(1, len(found))
        kind = random.randrange(7)
        if kind == 0 and found:
            found[at] = random.choice(CHANGES)
        elif kind == 1 and found:
            found[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            del found[at : at + random.randrange(1, 9)]
        elif kind == 3:
            found[at:at] = found[at : at + random.randrange(60)]
        elif kind == 4:
            del found[at:]
        else:
            lie = random.choice(LIES)
            found[at : at + len(lie)] = lie
    return bytes(found)


CODES = sorted(set(REQUESTS) - QUIET)
CHOICES = {code: choices(REQUESTS[code].header) for code in CODES}


class Sender:
    """The bytes that connections send, turn by turn."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def turn(self) -> bytes:
        """Return what one connection brings in a turn: a frame, most often whole, or bytes that never were one."""
        random = self.random
        if random.random() < 0.02:
            return random.randbytes(random.randrange(1, 300))
        # One frame a turn: the compiled reader takes ordinary sends before it is known what stands before them in a turn.
        data = frame(random)
        if random.random() < 0.35:
            data = damaged(random, data)
        return data[: random.randrange(len(data) + 1)] if random.random() < 0.03 else data


class Mistakes(logging.Handler):
    """Counts what the broker logs of its own mistakes, and shows the first ones."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """One line of the log."""
        if record.exc_info:
            self.count += 1
            if self.count < 10:
                print(self.format(record), file=sys.stderr)


class SteadyDisk(RealDisk):
    """A disk that is as full as it always was."""

    def usage(self) -> DiskUsage:
        """The same for both brokers."""
        return DiskUsage(1 << 40, 1 << 39)


class Victim:
    """A broker core that is fed, and a digest of all that it answers."""

    def __init__(self, root: str) -> None:
        self.now = START_MS
        settings = BrokerSettings(auto_create_topics=False, transaction_check_interval_ms=5000)
        self.broker = Broker(settings, StoreSettings(), SteadyDisk(root), Random(1), instant(self.now))
        self.digest = self.answers = self.closed = 0
        self.newest = -1
        self.open: list[int] = []
        self.shown: list[bytes] | None = None
        self.broker.start(instant(self.now))
        self.carry_out()

    def connect(self) -> int:
        """Return the number of a new connection."""
        self.newest += 1
        self.broker.connected(self.newest, f"10.0.0.1:{1024 + self.newest % 60_000}", instant(self.now))
        self.open.append(self.newest)
        return self.newest

    def lose(self, peer: int) -> None:
        """Have a connection gone."""
        self.open.remove(peer)
        self.broker.lost(peer, instant(self.now))
        self.carry_out()

    def turn(self, peer: int, data: bytes) -> None:
        """One turn in which one connection brings bytes, and a millisecond that goes by."""
        self.broker.feed(peer, data)
        while self.broker.commit(instant(self.now)):
            self.carry_out()
        self.carry_out()
        self.now += 1
        if (due := self.broker.due(instant(self.now))) is not None and due <= self.now:
            self.broker.tick(instant(self.now))
            self.carry_out()

    def carry_out(self) -> None:
        """Do what the core wants done, and note it."""
        while effects := self.broker.effects():
            for effect in effects:
                if isinstance(effect, Write):
                    self.note(b"%d %s" % (effect.peer, b"".join(map(bytes, effect.chunks))))
                    self.answers += 1
                elif isinstance(effect, Close):
                    self.note(b"%d closed %s" % (effect.peer, effect.reason.encode("utf-8", "replace")))
                    self.closed += 1
                    self.lose(effect.peer)
                elif isinstance(effect, Work):
                    self.work(effect)

    def work(self, work: Work[Any]) -> None:
        """Run one piece of work at once."""
        try:
            result = work.run()
        except Exception as exc:
            result = exc
        work.done(result, instant(self.now))

    def note(self, what: bytes) -> None:
        """Take something into the digest, but for the twin that runtime information (28) names, and the lengths around it."""
        if b'"nativeVersion"' in what:
            what = re.sub(rb'"nativeVersion":"[^"]*"', b"", what.partition(b"{")[2])
        self.digest = zlib.crc32(what, self.digest)
        if self.shown is not None:
            self.shown.append(what)

    def alive(self) -> bool:
        """Whether a good send of a new connection is stored; its topic is made anew before, if some frame deleted it."""
        peer = self.connect()
        self.turn(peer, topic_made("T"))
        fields = dict(zip("abcdefghijkm", ["g", "T", "TBW102", "4", "0", "0", "5", "0", "WAIT\x01true", "0", "false", "false"]))
        self.shown = []
        self.turn(peer, encode(Command(310, 0, 7, 0, 409, None, fields, b"alive", JSON)))
        found, self.shown = b"".join(self.shown), None
        self.lose(peer)
        return b'"code":0,' in found


def anonymous_mb() -> int:
    """Return the memory of this process that no file has."""
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) // 1024


def suffer(root: str, seed: int, size: int, show: int) -> None:
    """Feed so many bytes to a broker and tell what came of them, a line for every few turns."""
    victim, sender, mistakes = Victim(root), Sender(seed), Mistakes()
    logging.getLogger().addHandler(mistakes)
    random = Random(seed)
    for topic in (b"T", b"U"):
        victim.turn(victim.connect(), topic_made(topic.decode()))
    fed = turns = 0
    alive = True
    while fed < size:
        if not victim.open or (len(victim.open) < 20 and random.random() < 0.1):
            victim.connect()
        peer, data = random.choice(victim.open), sender.turn()
        line = turns // TURNS_A_LINE
        victim.shown = [] if line == show else None
        victim.turn(peer, data)
        if victim.shown is not None:
            print(json.dumps([turns, data.hex(), [each.decode("latin-1") for each in victim.shown]]), flush=True)
        if victim.open and random.random() < 0.1:
            victim.lose(random.choice(victim.open))
        fed, turns = fed + len(data), turns + 1
        if random.random() < 0.05:
            decided(victim, random)
        if turns % TURNS_A_LOOK == 0 or fed >= size:
            alive &= victim.alive()
        if turns % TURNS_A_LINE == 0 or fed >= size:
            told = {"turns": turns, "bytes": fed, "digest": victim.digest, "answers": victim.answers, "closed": victim.closed,
                    "log": victim.broker.store.end_offset, "alive": alive, "mistakes": mistakes.count}  # fmt: skip
            print(json.dumps([hot.NATIVE, anonymous_mb(), told]), flush=True)


def decided(victim: Victim, random: Random) -> None:
    """Store a half message and decide it, with what the broker answered, or with something damaged."""
    peer = victim.connect()
    text = f"TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01{random.randrange(1 << 40)}\x02"
    fields = dict(zip("abcdefghijkm", ["g", "T", "TBW102", "4", "1", "4", "5", "0", text, "0", "false", "false"]))
    victim.shown = []
    victim.turn(peer, encode(Command(310, 0, 7, 0, 409, None, fields, b"half", JSON)))
    answer, victim.shown = b"".join(victim.shown), None
    if found := re.search(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})".*"queueOffset":"(\d+)"', answer):
        fields = {
            "producerGroup": "g", "tranStateTableOffset": found[2].decode(), "commitLogOffset": str(int(found[1], 16)),
            "commitOrRollback": random.choice(["8", "8", "12", "0", "5"]), "fromTransactionCheck": "false", "msgId": "x",
        }  # fmt: skip
        kind = random.choice([JSON, ROCKETMQ])
        endings = [
            encode(Command(37, 0, 8 + number, 0, 409, None, fields, b"", kind)) for number in range(random.choice([1, 1, 2]))
        ]
        if random.random() < 0.3:
            endings[0] = damaged(random, endings[0])
        for ending in endings:
            victim.turn(peer, ending)
    if peer in victim.open:
        victim.lose(peer)


def topic_made(name: str) -> bytes:
    """Return the request that makes a topic."""
    fields = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    return encode(Command(17, 0, 1, 0, 409, None, fields, b"", JSON))


def both(seed: int, size: int, say: Any = lambda text: None) -> list[Any]:
    """Have both brokers suffer the same bytes; return the last line of each. Raises AssertionError where they differ."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as root:
        ask = [sys.executable, "-m", "tests.integration.hostile", "--seed", str(seed), "--bytes", str(size), "--root"]
        running = [
            subprocess.Popen(
                [*ask, f"{root}/{number}"], stdout=subprocess.PIPE, text=True, env={**os.environ, "HALFMOON_NATIVE": number}
            )
            for number in "01"
        ]
        first: list[Any] = []
        last: list[Any] = []
        try:
            for texts in zip(*(process.stdout for process in running if process.stdout)):
                last = [json.loads(text) for text in texts]
                first = first or last
                say(f"{last}")
                assert last[0][2] == last[1][2], f"seed {seed}: {last}"
                assert (last[0][2]["alive"], last[0][2]["mistakes"]) == (True, 0), f"seed {seed}: {last}"
                for before, now in zip(first, last):
                    assert now[1] < before[1] + GROWTH_MB, f"seed {seed}: from {before} to {now}"
            assert [process.wait() for process in running] == [0, 0]
        finally:
            for process in running:
                process.kill()
                process.wait()
        return last


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--bytes", type=int, default=1_000_000_000, help="how many")
    arguments.add_argument("--seed", type=int, default=1, help="of everything that is random")
    arguments.add_argument("--root", help="suffer in this directory, with the twin that is taken here, and compare nothing")
    arguments.add_argument("--show", type=int, default=-1, help="with --root: the line of which every turn is shown, from 0 on")
    chosen = arguments.parse_args()
    if chosen.root:
        suffer(chosen.root, chosen.seed, chosen.bytes, chosen.show)
    else:
        both(chosen.seed, chosen.bytes, print)


if __name__ == "__main__":
    main()
