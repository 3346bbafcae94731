"""The demo: as a whole, with real processes and real kills; and its count, which finds whatever does not agree."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import pytest

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
DEMO, PAGE = ROOT / "examples" / "demo", ROOT / "docs" / "demo.md"


@pytest.fixture
def scripts(monkeypatch):
    """Import a script of the demo by its name, as the demo does; later tests do not see it."""
    monkeypatch.syspath_prepend(DEMO)
    yield import_module
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{DEMO}/"):  # not by name: both have a __main__
            del sys.modules[name]


# ---------------------------------------------------------------- as a whole


def words(output: str) -> set[str]:
    """Return what is written on the lines of an output, whatever the numbers and the picture's name."""
    lines = re.sub(r"/\S+\.png", "PICTURE", output).splitlines()
    return {" ".join(re.sub(r"[\d,.]+", " ", line).split()) for line in lines if "─" not in line}


def demo(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo in a process of its own, without a terminal."""
    command = [sys.executable, "-m", "halfmoon", "demo", "--orders", "120", "--per-second", "200", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env={**os.environ, **environment})


@pytest.mark.slow
@pytest.mark.mission("001-18", "001-20", "001-31")
def test_it_ends_well_after_kills_and_says_so_to_programs_and_goes_on_without_java(tmp_path):
    ended = demo("--json", "--keep", str(tmp_path / "kept"), JAVA_HOME=str(tmp_path / "nowhere"))

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["spark"] is None
    assert "nowhere/bin/java does not run" in found["no_spark"]
    assert found["agrees"]
    of = {row["outcome"]: row for row in found["outcomes"]}
    paid, refused = of["paid"]["database"], of["refused"]["database"]
    assert (of["paid"]["half_messages"], of["paid"]["places"]) == (f"{paid} committed", [paid, paid])
    assert (of["refused"]["half_messages"], of["refused"]["places"]) == (f"{refused} rolled back", [0, 0])
    assert (paid > 0, refused > 0, paid + refused) == (True, True, 120)
    assert (of["in doubt"]["database"], of["in doubt"]["half_messages"]) == (0, "0 pending")
    assert found["by_check"] >= 120 // 10, "every tenth order says nothing of its decision"
    assert 0 < of["by a filter"]["database"] < paid
    assert 0 < of["reminders"]["database"] <= 120 // 20
    assert type(found["reminders_late_ms"]) is int
    assert (found["kills"], len(found["ready_ms"])) == (1, 2)
    assert (tmp_path / "kept" / "second-order-service.log").is_file()
    assert (tmp_path / "kept" / "store" / "commitlog").is_dir()


def processes_of(directory: Path) -> list[str]:
    """Return the command lines of the processes that work in a directory."""
    lines = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(place.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if str(directory) in line]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_all_its_processes_without_a_traceback(tmp_path, number):
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "halfmoon", "demo", "--no-spark", "--orders", "10000", "--keep", str(kept)]
    command = ["env", "--default-signal", *command]  # a test run under nohup ignores SIGHUP, and so would the demo
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: any("orders.py" in line for line in processes_of(kept)), "the order service")
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()

    assert (process.returncode, said) == (128 + number, "\nhalfmoon demo: stopped\n")
    assert processes_of(kept) == []


@pytest.mark.slow
def test_it_shows_tables_without_a_terminal_and_a_picture(tmp_path):
    picture = tmp_path / "audit.png"
    ended = demo("--plot", str(picture))

    assert ended.returncode == 0, ended.stderr
    assert "Everything agrees" in ended.stdout
    killed = re.search(r"killed when (\d+) of (\d+) copies were there; none is missing, none is there twice", ended.stdout)
    assert killed is not None, ended.stdout
    assert 0 < int(killed[1]) < int(killed[2])
    assert str(picture) in ended.stdout
    assert matplotlib.image.imread(picture).shape[:2] == (576, 1080)
    assert "\x1b" not in ended.stdout
    promised, said = words(PAGE.read_text().split("$ make demo\n")[1].split("```")[0]), words(ended.stdout)
    assert not [line for line in promised if not any(other.startswith(line) for other in said)], ended.stdout


# ---------------------------------------------------------------- its processes


def test_a_process_that_fails_is_reported_with_its_last_words(scripts, tmp_path):
    processes = scripts("processes")
    (tmp_path / "store").write_text("a file where a directory should be")

    with processes.Processes(tmp_path) as cast, pytest.raises(processes.DemoFailed, match=r"the broker ended with 1\n(.|\n)*store"):
        cast.start_broker(0, 0)


PARENT = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_what_a_process_started_dies_with_it(scripts, tmp_path, end):
    parent = tmp_path / "parent.py"
    child = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    parent.write_text(
        f"import json, subprocess, sys\np = subprocess.Popen({child})\nprint(json.dumps(p.pid), flush=True)\np.wait()\n"
    )
    with scripts("processes").Processes(tmp_path) as cast:
        cast.start("parent", str(parent))
        until(lambda: bool(cast.lines("parent")))
        [started] = cast.lines("parent")
        os.kill(started, 0)  # it lives

        getattr(cast, end)("parent")

        until(lambda: not _lives(started))


def _lives(process: int) -> bool:
    """Whether a process is there and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_message_that_comes_again_is_counted_and_a_reminder_keeps_its_earliest_delivery(scripts, tmp_path, monkeypatch):
    ledger = scripts("deliveries").Ledger(tmp_path)
    ledger.order(SimpleNamespace(payload={"order": "a", "cents": 100}), None)
    ledger.order(SimpleNamespace(payload={"order": "a", "cents": 100}), None)
    for seconds in (12.0, 9.5, 11.0):
        monkeypatch.setattr(time, "time", lambda now=seconds: now)
        ledger.reminder([SimpleNamespace(body=b'{"order": "a", "due": 10000}')])

    database = scripts("ledgers").connect(tmp_path, "deliveries.sqlite")
    assert database.execute("SELECT * FROM deliveries").fetchall() == [("a", 100, 2)]
    assert database.execute("SELECT * FROM reminders").fetchall() == [("a", -500, 3)], "half a second early once"


# ---------------------------------------------------------------- its count


def order(name: str, cents: int | None = 100) -> bytes:
    """A message's body."""
    return json.dumps({"order": name, "cents": cents}).encode()


@pytest.fixture
def ending(scripts):
    """Return a maker of endings: order ``a`` is paid, ``b`` refused, and all agrees but for what is given."""
    count = scripts("count")
    halves = [count.Half("tx-a"), count.Half("tx-b", "ROLLED_BACK")]
    audit = {"states": {"COMMITTED": 1, "ROLLED_BACK": 1}, "duplicates": 0, "orphans": 0}
    spark = count.Spark([("a", 100)], ["a"], [order("a")], 1, audit)
    whole = count.Found(
        orders={"a": (100, "paid", "tx-a"), "b": (100, "refused", "tx-b")}, sent={"a"}, delivered={"a": (100, 1)},
        delivered_large=set(), delivered_reminders={"a": 5},
        log=[order("a")], reminders=[order("a", None)], halves=halves, pending=0,
    )  # fmt: skip

    def make(**given: Any) -> Any:
        of_spark = {name[6:]: given.pop(name) for name in list(given) if name.startswith("spark_")}
        given["halves"] = [count.Half(*half) for half in given.get("halves", halves)]
        with_spark = spark._replace(audit={**audit, **of_spark.pop("audit", {})}, **of_spark) if of_spark else None
        return whole._replace(spark=with_spark, **given)

    make.count = count
    return make


def disagree(count: Any, found: Any) -> list[str]:
    """Return the outcomes that disagree."""
    return [row.outcome for row in count.rows(found) if not row.agrees]


LARGE = {"orders": {"a": (5001, "paid", "tx-a"), "b": (100, "refused", "tx-b")}, "log": [order("a", 5001)],
         "delivered": {"a": (5001, 1)}}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"log": [order("a")] * 2, "delivered": {"a": (100, 2)}, "halves": [("tx-a",), ("tx-b", "ROLLED_BACK"), ("tx-a",)]},
        {"halves": [("tx-a",), ("tx-b", "ROLLED_BACK"), ("tx-old", "ROLLED_BACK", "ROLLBACK")]},
        {**LARGE, "delivered_large": {"a"}},
        {"spark_killed_at": 1},
    ],
    ids=["all in its place", "stored and delivered twice", "cut short and rolled back", "a large order", "with Spark"],
)
def test_what_agrees_agrees(ending, given):
    found = ending(**given)

    assert disagree(ending.count, found) == []
    assert ending.count.spark_faults(found) == []


@pytest.mark.parametrize(
    ("what", "row", "given"),
    [
        ("a paid order whose half message was rolled back", "paid", {"halves": [("tx-a", "ROLLED_BACK"), ("tx-b", "ROLLED_BACK")]}),
        ("a paid order that the broker never had", "paid", {"halves": [("tx-b", "ROLLED_BACK")]}),
        ("a paid order that is not in the log", "paid", {"log": []}),
        ("a paid order that was not delivered", "paid", {"delivered": {}}),
        ("a paid order with another sum", "paid", {"log": [order("a", 101)]}),
        ("a refused order that was committed", "refused", {"halves": [("tx-a",), ("tx-b",)]}),
        ("a refused order that is visible", "refused", {"log": [order("a"), order("b")]}),
        ("a refused order that was delivered", "refused", {"delivered": {"a": (100, 1), "b": (100, 1)}}),
        ("a half message of no order that was committed", "cut short", {"halves": [("tx-a",), ("tx-b", "ROLLED_BACK"), ("tx-x",)]}),
        ("a message of no order", "cut short", {"log": [order("a"), order("x")]}),
        ("an order without a decision", "in doubt", {"orders": {"a": (100, "paid", "tx-a"), "c": (100, "placed", None)}}),
        ("a half message without a decision", "in doubt", {"pending": 1}),
        ("a large order that the filter left out", "by a filter", LARGE),
        ("an order that the filter should have left out", "by a filter", {"delivered_large": {"a"}}),
        ("a reminder that is not in the log", "reminders", {"reminders": []}),
        ("a reminder that did not come", "reminders", {"delivered_reminders": {}}),
        ("a reminder that came before its time", "reminders", {"delivered_reminders": {"a": -1}}),
        ("a reminder of an order that was refused", "reminders", {"sent": {"b"}, "delivered_reminders": {"b": 1}}),
        ("a refused order in Spark's table", "refused", {"spark_table": [("a", 100), ("b", 100)]}),
        ("a row in Spark's table with another sum", "paid", {"spark_table": [("a", 101)]}),
        ("a copy that is missing", "paid", {"spark_copies": []}),
        ("a reminder that Spark's table lacks", "reminders", {"spark_reminders": []}),
    ],
)  # fmt: skip
def test_the_count_bites(ending, what, row, given):
    assert row in disagree(ending.count, ending(**given)), what


@pytest.mark.parametrize(
    ("fault", "given"),
    [
        ("rows of the table differ", {"spark_table": [("a", 100), ("a", 100)]}),
        ("reminders in the table differ", {"spark_reminders": ["a", "a"]}),
        ("copies differ", {"spark_copies": [order("a"), order("a")]}),
        ("copies differ", {"spark_copies": [order("a") + b" "]}),
        ("not killed in the middle", {"spark_killed_at": 0, "log": [order("a")] * 3}),
        ("not killed in the middle", {"spark_killed_at": 3, "log": [order("a")] * 3}),
        ("other states", {"spark_audit": {"states": {"COMMITTED": 1}}}),
        ("more duplicates", {"spark_audit": {"duplicates": 1}}),
        ("without a transaction", {"spark_audit": {"orphans": 1}}),
    ],
)
def test_what_spark_did_wrong_is_told(ending, fault, given):
    assert any(fault in text for text in ending.count.spark_faults(ending(**given)))


def test_a_transaction_that_was_begun_again_is_in_the_state_of_its_last_half_message(ending):
    states = [("tx-a", "ROLLED_BACK"), ("tx-a",), ("tx-b",), ("tx-b", "ROLLED_BACK"), ("tx-c", "ROLLED_BACK")]

    assert ending.count.states_at_broker(ending(halves=states).halves) == {"COMMITTED": 2, "ROLLED_BACK": 1}
