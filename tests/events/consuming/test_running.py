"""Consumers as a process: until a signal, or until they are told; and the module that a name means."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.events.consuming.on import Handler
from halfmoon.events.consuming.running import ModuleRefused, module_named, run_async
from tests.events.consuming.shop import Shop
from tests.waiting import soon, until

pytestmark = pytest.mark.slow


class Process:
    """A program that runs consumers, and what it wrote so far."""

    def __init__(self, text: str, home: Path, nameserver: str) -> None:
        (home / "program.py").write_text(textwrap.dedent(text))
        self._out = (home / "out").open("wb")
        self._path = home / "out"
        environment = {**os.environ, "NAMESRV_ADDR": nameserver, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    @property
    def out(self) -> str:
        return self._path.read_text()

    def let_go_on(self, count: int) -> None:
        """Let so many functions go on that wait for a byte."""
        self.process.stdin.write(b"." * count)
        self.process.stdin.flush()

    def wait(self, within_s: float = 60) -> int:
        return self.process.wait(within_s)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self._out.close()


@pytest.fixture
def program(tmp_path: Path, shared: Shop) -> Iterator:
    made: list[Process] = []

    def start(text: str) -> Process:
        made.append(Process(text, tmp_path, shared.nameserver))
        until(lambda: "ready" in made[-1].out)
        return made[-1]

    yield start
    for one in made:
        one.end()


SLOW = """
    import asyncio
    import logging
    import os
    import time
    from halfmoon.events import on, run

    logging.basicConfig(level=logging.INFO)

    def say(*words):  # print writes the end of a line apart, and another thread's line may come between
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    @on("{group}", "{topic}", "EC_PAID")
    {kind} handle(event, context):
        say("began", event.payload)
        {work}
        say("ended", event.payload)

    left = run(handle, ready=lambda consumers: say("ready", consumers.groups), rebalance_ms=200, {options})
    say("left", left)
"""


STOPPING = "consumers are stopping"
"""What the log says once a signal was heard."""


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("kind", "work"), [("def", "os.read(0, 1)"), ("async def", "await asyncio.to_thread(os.read, 0, 1)")])
def test_a_signal_ends_it_when_what_is_in_hand_is_finished(program, shared, stop, kind, work):
    name = f"{stop.name}_{kind[0]}"
    text = SLOW.format(group=f"S_{name}", topic=f"TP_{name}", kind=kind, work=work, options="threads=2")
    running = program(text)
    for number in range(2):
        shared.publish("EC_PAID", number, topic=f"TP_{name}")
    until(lambda: running.out.count("began") == 2)
    running.process.send_signal(stop)
    until(lambda: STOPPING in running.out)
    assert "ended" not in running.out
    running.let_go_on(2)

    assert running.wait() == 0
    assert sorted(line for line in running.out.splitlines() if line.startswith("ended")) == ["ended 0", "ended 1"]
    assert running.out.endswith("left 0\n")


def test_a_second_signal_does_not_wait(program, shared):
    text = SLOW.format(group="S_hurry", topic="TP_hurry", kind="async def", work="await asyncio.sleep(600)", options="")
    running = program(text)
    shared.publish("EC_PAID", topic="TP_hurry")
    until(lambda: "began" in running.out)
    running.process.terminate()
    until(lambda: STOPPING in running.out)  # two that come at once may be heard as one
    running.process.terminate()

    assert running.wait() == 0
    assert "consumers stopped at once" in running.out
    assert "ended" not in running.out


def test_what_does_not_end_in_time_is_left_and_counted(program, shared):
    options = "close_wait_ms=200"
    text = SLOW.format(group="S_left", topic="TP_left", kind="def", work="time.sleep(600)", options=options)
    running = program(text)
    shared.publish("EC_PAID", topic="TP_left")
    until(lambda: "began" in running.out)
    running.process.terminate()
    until(lambda: "left 1" in running.out)

    assert "ended" not in running.out.partition("left 1")[0]


async def test_on_an_event_loop_it_runs_until_it_is_told(shared):
    stop, seen = asyncio.Event(), []
    declared = Handler(group="S_told", topic="TP_told", code="EC_PAID", function=lambda event: seen.append(event.payload))
    running = asyncio.create_task(run_async(declared, nameserver=shared.nameserver, stop=stop, rebalance_ms=200))
    await asyncio.to_thread(shared.publish, "EC_PAID", 1, topic="TP_told")
    await soon(lambda: seen)
    stop.set()
    async with asyncio.timeout(60):
        assert await running == 0


async def test_on_an_event_loop_cancelling_ends_it_too(shared):
    ready = asyncio.Event()
    declared = Handler(group="S_cancelled", topic="TP_cancelled", code="EC_PAID", function=lambda event: None)
    running = asyncio.create_task(run_async(declared, nameserver=shared.nameserver, ready=lambda consumers: ready.set()))
    async with asyncio.timeout(60):
        await ready.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


# ---------------------------------------------------------------- modules


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_is_imported_by_its_name(here):
    (here / "shop_found.py").write_text("NUMBER = 7\n")

    assert module_named("shop_found").NUMBER == 7


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("shop_missing", None, "module shop_missing: there is no module shop_missing"),
        ("shop_missing.mail", None, "there is no module shop_missing"),
        (
            "shop_needs",
            "import not_installed_here",
            r"it needs not_installed_here, .*shop_needs.py, line 1",
        ),
        ("shop_raises", "x = 1\n1 / 0", r"module shop_raises: ZeroDivisionError: division by zero \(.*shop_raises.py, line 2"),
        ("shop_broken", "def f(:\n", r"module shop_broken: SyntaxError: (?!.*line 1.*line 1).*\(/.*shop_broken.py, line 1\)"),
        ("shop/mail.py", None, "no name of a module; write it with dots"),
        ("", None, "no name of a module"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_the_place(here, name, text, said):
    if text is not None:
        (here / f"{name}.py").write_text(text)

    with pytest.raises(ModuleRefused, match=said):
        module_named(name)
