"""A message that holds an ordered queue, in real processes: every tool finds it, and the queue goes on once it is skipped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import until

CONSUMER = """
import sys, threading
from halfmoon import ConsumeFrom, PushConsumer

consumer = PushConsumer(
    group="C_shop", nameserver=sys.argv[1], orderly=True, suspend_queue_ms=200, persist_offsets_ms=100,
    consume_from=ConsumeFrom.FIRST_OFFSET,
)
consumer.subscribe("orders")

@consumer.on_message
def listen(messages):
    print(messages[0].body.decode(), flush=True)
    if messages[0].body == b"poison":
        raise KeyError("price")

with consumer:
    threading.Event().wait()
"""


@contextmanager
def process(out: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with out.open("wb") as written:
        started = subprocess.Popen([sys.executable, *command], stdout=written, stderr=subprocess.STDOUT)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def halfmoon(nameserver: str, *command: str) -> tuple[int, str]:
    words = [sys.executable, "-m", "halfmoon", *command, "--nameserver", nameserver]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_poison_message_is_found_by_every_tool_and_skipped(tmp_path: Path) -> None:
    served, consumed = tmp_path / "served", tmp_path / "consumed"
    (tmp_path / "consumer.py").write_text(CONSUMER)
    serve = ("-m", "halfmoon", "serve", "--ephemeral", "--http-port", "0", "--json")
    with process(served, *serve):
        until(lambda: '"nameserver"' in served.read_text())
        ready = json.loads(next(line for line in served.read_text().splitlines() if '"nameserver"' in line))
        nameserver = ready["nameserver"]
        assert halfmoon(nameserver, "topic", "create", "orders", "--queues", "1")[0] == 0
        assert halfmoon(nameserver, "produce", "--topic", "orders", "first", "poison", "last")[0] == 0
        assert halfmoon(nameserver, "status")[0] == 0
        with process(consumed, str(tmp_path / "consumer.py"), nameserver):
            until(lambda: consumed.read_text().count("poison\n") > 10)

            words = r"ueue 0 of orders at broker-a is stuck at offset 1: KeyError: 'price', [0-9,]+ tries, [0-9.ms]+"
            code, text = halfmoon(nameserver, "status")
            assert (code, bool(re.search(f"degraded\n(.*\n)*  C_shop: q{words}\n", text))) == (1, True), text
            for command in (("group", "list"), ("group", "show", "C_shop")):
                code, text = halfmoon(nameserver, *command)
                assert (code, bool(re.search(f"Q{words}", text))) == (0, True), text
            assert 'halfmoon_group_stuck_queues{cluster="DefaultCluster",broker="broker-a",topic="orders"' in metrics(ready["http"])

            skip = ("group", "skip", "C_shop", "orders", "0", "--offset", "1", "--to-dead-letters", "--yes")
            assert halfmoon(nameserver, *skip)[0] == 0
            until(lambda: "last\n" in consumed.read_text())
            until(lambda: halfmoon(nameserver, "status")[0] == 0)
            assert "note: C_shop: 1 message went to the dead letters." in halfmoon(nameserver, "status")[1]


def metrics(address: str) -> str:
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())
