"""How many syncs a message costs in sync flush: group commit, counted in the live broker.

    benchmarks/syncs.py --blast PATH [--seconds 4]

Starts `halfmoon serve` with SYNC_FLUSH in a process that counts its calls of fdatasync, sends to it with the load generator, and
prints messages, syncs (those of queues, indexes and checkpoints too) and their ratio for some numbers of requests in flight.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop.process import Server, free_port  # noqa: E402

COUNTING = """
import os, sys
from halfmoon.cli.main import main

sync, calls = os.fdatasync, 0

def counted(descriptor):
    global calls
    calls += 1
    sync(descriptor)

os.fdatasync = counted
try:
    code = main()
finally:
    open(os.environ["SYNCS"], "w").write(str(calls))
sys.exit(code)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--blast", required=True, help="the load generator")
    parser.add_argument("--seconds", type=int, default=4, help="length of one run")
    options = parser.parse_args()
    print("| in flight | messages | syncs | syncs a message |\n|---|--:|--:|--:|")
    for connections, window in ((1, 1), (4, 16), (8, 64)):
        messages, syncs = measure(options.blast, connections, window, options.seconds)
        print(f"| {connections} x {window} | {messages:,} | {syncs:,} | {syncs / messages:.4f} |", flush=True)


def measure(blast: str, connections: int, window: int, seconds: int) -> tuple[int, int]:
    """Return how many messages were stored and how many syncs there were from start to stop."""
    with tempfile.TemporaryDirectory(prefix="halfmoon-syncs-") as folder:
        port, count = free_port(), Path(folder) / "syncs"
        command = [
            "/usr/bin/env", f"SYNCS={count}", sys.executable, "-c", COUNTING, "serve", "--data", f"{folder}/data",
            "--nameserver-port", str(free_port()), "--broker-port", str(port), "--set", "flushDiskType=SYNC_FLUSH",
        ]  # fmt: skip
        server = Server(command, Path(folder) / "log")
        try:
            server.wait_line("halfmoon ready")
            common = ["-a", f"127.0.0.1:{port}", "-t", "Syncs"]
            subprocess.run([blast, "create", *common, "-q", "4"], check=True, capture_output=True)
            sending = [blast, "send", *common, "-c", str(connections), "-w", str(window), "-d", str(seconds)]
            found = json.loads(subprocess.run(sending, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        finally:
            server.stop()
        return int(found["msgs"]), int(count.read_text())


if __name__ == "__main__":
    main()
