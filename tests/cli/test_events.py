"""`halfmoon events` with modules and declarations of a shop; running as a process of its own, against a running broker."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from halfmoon import Admin, Producer
from halfmoon.model import Message
from tests.waiting import until

pytestmark = pytest.mark.slow

_NUMBERS = itertools.count(1)

CONSUMERS = """
import asyncio
import os
import time

from halfmoon.events import Publisher, on


def say(line):
    # Whole, whatever other threads write: print writes the end of a line apart.
    os.write(1, (line + "\\n").encode())


events = Publisher("P_shop", topics=["TP_ORDER", "TP_MAIL"])


@on("S_mail", "{topic}", "EC_PAID")
def send_mail(event, context):
    say(f"mail {{event.payload}} attempt {{context.attempt}}")
    if event.payload == "slow":
        time.sleep(1.5)
    if event.payload == "stuck":
        time.sleep(600)
    say(f"mailed {{event.payload}}")


class Stock:
    @on("S_stock", "{topic}", "EC_PAID", persistence=False)
    async def paid(self, event):
        await asyncio.sleep(0)
        say(f"stock {{event.payload}}")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with nothing in it; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def name() -> str:
    """The name of a module that no other test imports."""
    return f"shop_consumers_{next(_NUMBERS)}"


@pytest.fixture
def module(here: Path, name: str, topic: str) -> str:
    (here / f"{name}.py").write_text(CONSUMERS.format(topic=topic))
    return name


class Running:
    """A process of `halfmoon events run`."""

    def __init__(self, here: Path, nameserver: str, *arguments: str) -> None:
        self._path = here / "out"
        self._errors = here / "errors"
        command = [sys.executable, "-m", "halfmoon.cli.main", "events", "run", *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
        environment |= {"NAMESRV_ADDR": nameserver} if nameserver else {}
        with self._path.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, cwd=here, env=environment, stdout=out, stderr=errors)

    @property
    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()

    @property
    def ready(self) -> str:
        """The line that says so; functions may write before it."""
        return next((line for line in self.lines if '{"ready"' in line or "halfmoon ready" in line), "")

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def start(here: Path, cluster) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def begin(*arguments: str, nameserver: str | None = None, wait: str = "") -> Running:
        made.append(Running(here, cluster.nameserver if nameserver is None else nameserver, *arguments))
        if wait:
            until(lambda: wait in made[-1].errors)
        else:
            until(lambda: made[-1].ready or made[-1].process.poll() is not None)
        return made[-1]

    yield begin
    for one in made:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def send(cluster, topic) -> Iterator[Callable[[str], None]]:
    with Producer(group="P_test", nameserver=cluster.nameserver) as producer:
        yield lambda payload: producer.send(Message(topic, json.dumps(payload).encode(), tag="EC_PAID"))


def test_consumers_of_a_module_run_until_sigterm_and_finish_what_is_in_hand(start, send, module):
    send("before")
    running = start(module, "--json")
    ready = json.loads(running.ready)
    send("slow")
    until(lambda: {"mailed before", "mail slow attempt 1", "stock slow"} <= set(running.lines))

    assert (ready["ready"], ready["groups"], ready["consumers"]) == (True, ["S_mail", "S_stock"], 2)
    assert ready["pid"] == running.process.pid
    assert running.stop() == 0
    assert running.lines[-1] == "mailed slow"
    assert "stock before" not in running.lines
    assert "Traceback" not in running.errors


def test_people_read_a_line_when_it_is_ready(start, module):
    running = start(module)

    assert running.lines == ["halfmoon ready: 2 consumers in groups S_mail, S_stock"]
    assert running.stop() == 0


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_function_that_raises_is_logged_once_with_the_traceback_of_its_own_code(start, here, name, topic, send, kind):
    (here / f"{name}.py").write_text(
        f"from halfmoon.events import on\n\n@on('S_{name}', '{topic}', 'EC_PAID')\n"
        f"{kind} mail(event):\n    return event.payload['price']\n"
    )
    running = start(name)
    send({"no": "price"})
    until(lambda: "KeyError" in running.errors)
    assert running.stop() == 0

    header, *lines = running.errors.splitlines()
    assert f"ERROR halfmoon.client: listener failed: group=S_{name} topic={topic} queue=broker-a:" in header
    assert header.endswith("tag=EC_PAID try=1 of 17; delivered again in 10s (delay level 3)")
    frames = [line for line in lines if "^" not in line and "~" not in line]
    assert frames == [
        "Traceback (most recent call last):",
        f'  File "{here}/{name}.py", line 5, in mail',
        "    return event.payload['price']",
        "KeyError: 'price'",
    ]


def test_a_name_server_that_does_not_answer_is_told_and_tried_again(start, module, topic):
    running = start(module, "--nameserver", "127.0.0.1:1", wait="trying again")

    assert "halfmoon events: no name server answers: connect to 127.0.0.1:1 failed: Connection refused" in running.errors
    assert f"S_mail cannot consume {topic}: no name server answers: connect to 127.0.0.1:1 failed" in running.errors
    assert running.process.poll() is None
    assert not running.ready
    assert running.stop() == 0


def test_a_broker_that_is_given_as_a_name_server_is_named_at_once(start, module, cluster):
    running = start(module, "--nameserver", cluster.broker, wait="cannot consume")

    first, *_ = running.errors.splitlines()
    assert f"no name server answers: {cluster.broker} is a broker, not a name server" in first
    assert not running.ready
    assert running.stop() == 0


def test_brokers_know_the_groups_when_ready_is_said_and_a_topic_that_is_missing_is_named(start, here, name, cluster, topic):
    missing = f"missing_{name}"
    text = "from halfmoon.events import on\n"
    for function, where in (("mail", topic), ("late", missing)):
        text += f"@on('S_{function}', '{where}', 'EC_PAID')\ndef {function}(event): ...\n"
    (here / f"{name}.py").write_text(text)
    running = start(name)

    with Admin(nameserver=cluster.nameserver) as admin:
        assert len(admin.consumer_connections("S_mail").connection_set) == 1
    assert running.ready == f"halfmoon ready: 2 consumers in groups S_late, S_mail; topics that do not exist yet: {missing}"
    assert running.stop() == 0


def test_what_does_not_end_in_time_is_told_and_the_process_ends(start, send, module):
    running = start(module, "--close-wait", "300ms", "--group", "S_mail")
    send("stuck")
    until(lambda: "mail stuck attempt 1" in running.lines)
    begin = time.monotonic()

    assert running.stop() == 1
    assert time.monotonic() - begin < 60
    assert "1 functions did not end in time; their events are delivered again" in running.errors


def test_only_one_group_runs_when_it_is_named(start, send, module):
    running = start(module, "--group", "S_stock")
    send("a box")
    until(lambda: "stock a box" in running.lines)

    assert running.ready == "halfmoon ready: 1 consumer in group S_stock"
    assert running.stop() == 0
    assert not any(line.startswith("mail") for line in running.lines)


def declare(here: Path, name: str, topic: str, head: str = "", consumer: str = "") -> str:
    """Write a file of declarations and the module behind it; return the file's name."""
    (here / f"{name}.py").write_text(
        "def on_mail(event, context):\n    print('declared', event.payload, flush=True)\n"
        "def check(event, context):\n    print('checked', event.payload, flush=True)\n"
    )
    (here / "events.toml").write_text(
        f"""
{head}
[classes]
mail = "{name}:on_mail"
paid = "{name}:check"

[publishers.shop]
group = "P_declared"
topics = ["{topic}"]
tx_callback = "paid"

[consumers.mail]
group = "S_declared"
listener = "mail"
{consumer}

[consumers.mail.channels]
{topic} = ["EC_PAID"]
"""
    )
    return "events.toml"


def test_declarations_in_a_file_run_too_with_the_name_server_that_the_command_names(here, start, send, name, topic):
    running = start(declare(here, name, topic, consumer='nameserver = "127.0.0.1:1"'))
    send("by a file")
    until(lambda: "declared by a file" in running.lines)

    assert running.stop() == 0
    assert running.errors == ""


def test_the_name_server_of_a_file_serves_its_consumers_and_its_publishers(here, start, send, name, topic, cluster):
    running = start(declare(here, name, topic, f'nameserver = "{cluster.nameserver}"'), nameserver="")
    send("by its own")
    until(lambda: "declared by its own" in running.lines)

    assert running.stop() == 0
    assert running.errors == ""


# ---------------------------------------------------------------- in this process


def test_what_a_module_declares_is_listed(run_alone, module, topic):
    ran = run_alone("events", "list", module)

    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines() if line.strip().startswith(("P_shop", "S_mail", "S_stock"))] == [
        ["P_shop", "TP_MAIL,", "TP_ORDER", "-"],
        ["S_mail", topic, "EC_PAID", f"{module}.send_mail", "-"],
        ["S_stock", topic, "EC_PAID", f"{module}.Stock.paid", "async,", "not", "kept", "while", "offline"],
    ]


def test_the_list_is_json_for_programs(run_alone, module, topic):
    found = run_alone("events", "list", module, "--json").json()

    assert found["publishers"] == [{"group": "P_shop", "topics": ["TP_MAIL", "TP_ORDER"], "database": ""}]
    assert found["consumers"][1] == {
        "group": "S_stock",
        "topic": topic,
        "code": "EC_PAID",
        "function": f"{module}.Stock.paid",
        "event_type": "direct",
        "persistence": False,
        "dedup": False,
        "async": True,
    }


@pytest.mark.parametrize("verb", ["run", "list"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no module"),
        ("import not_installed_here", "it needs not_installed_here, which is not installed"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (
            'from halfmoon.events import on\n@on("S_m", "T", "C")\ndef f(e, c): ...\n@on("S_m", "T", "C")\ndef g(e, c): ...',
            "two functions consume T/C for group S_m",
        ),
        ('from halfmoon.events import on\n@on("S_m", "T", "C", event_type="copy")\ndef f(e, c): ...', "event type 'copy'"),
    ],
)
def test_a_module_that_will_not_do_is_refused_with_the_reason(run_alone, here, name, verb, text, said):
    if text is not None:
        (here / f"{name}.py").write_text(text)
    ran = run_alone("events", verb, name)

    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_module_without_consumers_is_refused_by_run_and_listed_as_empty(run_alone, here, name):
    (here / f"{name}.py").write_text("NUMBER = 7\n")
    ran, listed = run_alone("events", "run", name), run_alone("events", "list", name)

    assert (ran.code, listed.code) == (2, 0)
    assert f"{name}: no consumer is declared there; decorate functions with @on" in ran.err
    assert "Consumers: none" in listed.out


def test_a_group_that_nothing_is_declared_for_is_refused(run_alone, module):
    ran = run_alone("events", "run", module, "--group", "S_mall")

    assert ran.code == 2
    assert "--group S_mall: no consumer is declared for it; declared groups: S_mail, S_stock" in ran.err


def test_an_address_that_is_none_is_refused_once_and_not_tried_again(run_alone, module):
    refused = run_alone("events", "run", module, "--nameserver", "localhost")
    assert refused.code == 2
    assert "retrying" not in refused.err
    assert refused.err.count("localhost") <= 2, "the message, said once"


def test_errors_are_json_when_programs_ask(run_alone, here):
    ran = run_alone("events", "list", "shop_missing", "--json")

    assert ran.code == 2
    assert json.loads(ran.err)["kind"] == "ModuleRefused"


def test_the_events_of_modules_are_written_as_an_asyncapi_document(here: Path, name: str, topic: str, run_alone) -> None:
    (here / f"{name}.py").write_text(
        CONSUMERS.format(topic=topic)
        + f"""
import msgspec
from halfmoon.events import event


@event("{topic}", "EC_PAID")
class Paid(msgspec.Struct):
    order_id: int
"""
    )
    as_yaml = yaml.safe_load(run_alone("events", "schema", name, "--title", "The shop").out)
    as_json = run_alone("events", "schema", name, "--title", "The shop", "--json").json()

    assert as_yaml == as_json
    assert as_json["info"] == {"title": "The shop", "version": "1.0.0"}
    assert as_json["components"]["schemas"]["Paid"]["properties"] == {"order_id": {"type": "integer"}}


def test_consumers_are_run_again_when_their_module_changes_and_a_broken_one_is_waited_out(
    here: Path, module: str, start, send
) -> None:
    running = start(module, "--reload")
    source = (here / f"{module}.py").read_text()
    (here / f"{module}.py").write_text(source + "\ndef broken(:\n")
    until(lambda: "waiting for a change of a source file" in running.errors)
    assert f"{module}.py, line" in running.errors

    (here / f"{module}.py").write_text(source.replace('say(f"mail ', 'say(f"letter '))
    until(lambda: sum("halfmoon ready" in line for line in running.lines) == 2)
    send("a box")
    until(lambda: "letter a box attempt 1" in running.lines)

    assert running.stop() == 0
