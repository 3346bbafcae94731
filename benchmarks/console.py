"""What the console costs: its first page after a start, its memory, and what those who send notice of ten who watch.

    python benchmarks/console.py --blast /path/to/load-generator [--viewers 10] [--rate 3000] [--seconds 8] [--rounds 3]

Starts `halfmoon serve --console` in an empty directory. Each viewer asks for the overview's live part every two seconds, as its
page does. Sends are offered at a rate, so that a late answer counts from when it was due; rounds without and with viewers take
turns.
Prints one row a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from halfmoon.console.access.users import Users  # noqa: E402

PASSWORD = "a password of the benchmark"


class Started:
    """`halfmoon serve --console`, from its start on."""

    def __init__(self, data: Path) -> None:
        users = Users(data / "console", lambda: time.time_ns() // 1_000_000)
        users.add("admin", "operator")
        users.change_password("admin", PASSWORD)
        began = time.perf_counter()
        options = [
            "--data",
            str(data),
            "--console",
            "--console-port",
            "0",
            "--nameserver-port",
            "0",
            "--broker-port",
            "0",
            "--json",
        ]
        self.process = subprocess.Popen([sys.executable, "-m", "halfmoon", "serve", *options], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.facts: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.ready_ms = (time.perf_counter() - began) * 1000
        httpx.get(self.facts["console"] + "/login", timeout=30).raise_for_status()
        self.first_page_ms = (time.perf_counter() - began) * 1000

    def child(self) -> int:
        """Return the process id of the console."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return next(int(pid) for thread in threads for pid in (thread / "children").read_text().split())

    def stop(self) -> None:
        """End both."""
        self.process.terminate()
        self.process.wait(30)


def memory_mb(pid: int) -> str:
    """Return what a process takes: all that is mapped, its share of it, and what is its own alone."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return ", ".join(f"{name} {int(found[1]) / 1024:.1f} MB" for name in ("Rss", "Pss", "Private_Dirty")
                     if (found := re.search(rf"^{name}:\s+(\d+)", text, re.M)))  # fmt: skip


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def logged_in(url: str) -> httpx.AsyncClient:
    """Return a browser of its own that is logged in and has the overview."""
    browser = httpx.AsyncClient(base_url=url, headers={"Origin": url}, timeout=30)
    token = re.search(r'name="csrf" value="([^"]+)"', (await browser.get("/login")).text)
    assert token is not None
    sent = {"csrf": token[1], "then": "", "name": "admin", "password": PASSWORD}
    answer = await browser.post("/login", data=sent)
    assert answer.status_code == 303, answer.text
    (await browser.get("/")).raise_for_status()
    return browser


async def watch(browser: httpx.AsyncClient, took: list[float]) -> None:
    """Ask for the live part every two seconds, until cancelled."""
    while True:
        began = time.perf_counter()
        (await browser.get("/overview/live", headers={"X-Live": "1"})).raise_for_status()
        took.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(2)


async def sent(blast: str, address: str, rate: int, seconds: int) -> dict[str, Any]:
    """Offer sends at a rate, and return what the generator says."""
    options = ["send", "-a", address, "-t", "bench", "-c", "4", "-w", "16", "-r", str(rate), "-d", str(seconds)]
    process = await asyncio.create_subprocess_exec(blast, *options, stdout=asyncio.subprocess.PIPE)
    out = (await process.communicate())[0]
    return dict(json.loads(out))


async def measure(started: Started, args: argparse.Namespace) -> None:
    """Print the figures of one start."""
    url, address = started.facts["console"], started.facts["broker"]
    browsers = [await logged_in(url) for _ in range(args.viewers)]
    await sent(args.blast, address, args.rate, 3)
    figures: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    took: list[float] = []
    used = 0.0
    for _ in range(args.rounds):
        figures["without"].append(await sent(args.blast, address, args.rate, args.seconds))
        before = cpu_s(started.child())
        viewers = [asyncio.create_task(watch(browser, took)) for browser in browsers]
        figures["with"].append(await sent(args.blast, address, args.rate, args.seconds))
        for viewer in viewers:
            viewer.cancel()
        used += cpu_s(started.child()) - before
    for name, rounds in figures.items():
        print(f"{name:>8} viewers:", "  ".join(f"p50 {_us(each, 'p50'):.0f} p99 {_us(each, 'p99'):.0f} us" for each in rounds))
    p99 = {name: median(_us(each, "p99") for each in rounds) for name, rounds in figures.items()}
    print(f"p99 with : without {p99['with'] / p99['without']:.2f}")
    print(f"live part: median {median(took):.1f} ms, longest {max(took):.1f} ms, of {len(took)}")
    print(f"console: {used / args.rounds / args.seconds:.1%} of a processor, {memory_mb(started.child())}")


def _us(figures: dict[str, Any], name: str) -> float:
    return float(figures["lat_us"][name])


def main() -> None:
    """Read the options, start and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blast", required=True)
    for name, default in (("viewers", 10), ("rate", 3000), ("seconds", 8), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        started = Started(Path(directory))
        try:
            print(f"ready {started.ready_ms:.0f} ms, first page {started.first_page_ms:.0f} ms after the start")
            print(f"broker: {memory_mb(started.process.pid)}; console: {memory_mb(started.child())}")
            asyncio.run(measure(started, args))
        finally:
            started.stop()


if __name__ == "__main__":
    main()
