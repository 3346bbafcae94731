"""The wheel says that it is typed, and type checkers that have only the wheel find what a user does wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """\
from halfmoon import Admin, AsyncAdmin, AsyncProducer, Message, Producer, PullConsumer, PushConsumer, SendResult, StoredMessage

consumer = PushConsumer(group="GID_mail")
consumer.subscribe("orders", "paid || refunded")

@consumer.on_message
def handle(messages: list[StoredMessage]) -> None:
    print(messages[0].body.decode(), messages[0].topic.upper())

async def send() -> SendResult:
    async with AsyncProducer(group="GID_orders") as producer:
        reveal_type(producer)
        return await producer.send(Message("orders", b"paid", tag="paid"))

with Producer(group="GID_orders") as producer, PullConsumer(group="GID_audit") as audit:
    reveal_type(audit.poll(10))
    result = producer.send(Message("orders", b"paid", keys=["7"]))
    producer.send("paid")
    Message("orders", body=7)
    result.queue_ofset

async def look(admin: Admin, waiting: AsyncAdmin) -> None:
    reveal_type(admin.lag)
    reveal_type(await waiting.dead_letters("GID_mail", count_max=1))
    admin.create_topic("orders", queues=4)
"""
TYPED_EVENTS = """\
from datetime import timedelta

from pydantic import BaseModel

from halfmoon.events import BoundEvents, ConsumerContext, Publisher, event, on

@event("TP_ORDER", "EC_PAID", key="order_id")
class OrderPaid(BaseModel):
    order_id: int

@on(OrderPaid, group="S_mail", ordered=True, retries=5)
async def mail(paid: OrderPaid, context: ConsumerContext) -> None:
    reveal_type(paid.order_id)

class Stock:
    @on(OrderPaid, group="S_stock")
    def paid(self, paid: OrderPaid) -> None: ...

@on(OrderPaid, group="S_text")
def text(paid: str) -> None: ...

def sell(events: Publisher, bound: BoundEvents) -> None:
    reveal_type(events.publish(OrderPaid(order_id=42), delay=timedelta(days=1)))
    bound.publish(OrderPaid(order_id=42), transactional=True, deliver_at=7)
    bound.publish(OrderPaid(order_id=42), transactionl=True)
    events.publish(OrderPaid(order_id=42), delay="1d")
"""
EXPECTED = [
    (12, 'note: Revealed type is "halfmoon.client.aio.AsyncProducer"'),
    (16, 'note: Revealed type is "list[halfmoon.model.StoredMessage]"'),
    (18, 'error: Argument 1 to "send" of "Producer" has incompatible type "str"; expected "Message"'),
    (19, 'error: Argument "body" to "Message" has incompatible type "int"; expected "bytes"'),
    (20, 'error: "SendResult" has no attribute "queue_ofset"; maybe "queue_offset"?'),
    (23, 'note: Revealed type is "def (group: str, topic: str | None =) -> int"'),
    (24, 'note: Revealed type is "list[halfmoon.model.DeadLetter]"'),
    (25, 'error: Unexpected keyword argument "queues"'),
]
"""Lines, and what mypy says of them once it knows the types; it says nothing of the others."""
EXPECTED_OF_EVENTS = [
    (13, 'note: Revealed type is "int"'),
    (
        19,
        'error: Argument 1 to "__call__" of "_TypedOn" has incompatible type "Callable[[str], None]"; '
        'expected "Callable[[OrderPaid], None]"',
    ),
    (23, 'note: Revealed type is "halfmoon.events.publishing.delivery_modes.Published"'),
    (
        25,
        'error: Unexpected keyword argument "transactionl" for "publish" of "BoundEvents"; did you mean "transactional"?',
    ),
    (25, 'note: "publish" defined in "halfmoon.events.publishing.publisher"'),
    (
        26,
        'error: Argument "delay" to "publish" of "Publisher" has incompatible type "str"; expected "float | timedelta | None"',
    ),
]
PYRIGHT = [
    (12, 'Type of "producer" is "AsyncProducer"'),
    (16, 'Type of "audit.poll(10)" is "list[StoredMessage]"'),
    (18, "reportArgumentType"),
    (19, "reportArgumentType"),
    (20, "reportAttributeAccessIssue"),
    (23, 'Type of "admin.lag" is "(group: str, topic: str | None = None) -> int"'),
    (24, 'Type of "await waiting.dead_letters("GID_mail", count_max=1)" is "list[DeadLetter]"'),
    (25, "reportCallIssue"),
]
"""The same of pyright: the name of the rule where it finds an error."""
PYRIGHT_OF_EVENTS = [
    (13, 'Type of "paid.order_id" is "int"'),
    (19, "reportCallIssue"),
    (19, "reportArgumentType"),
    (23, 'Type of "events.publish(OrderPaid(order_id=42), delay=timedelta(days=1))" is "Published"'),
    (25, "reportCallIssue"),
    (26, "reportArgumentType"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return an interpreter whose environment has the wheel, and the packages that it needs, but not our source."""
    home = tmp_path_factory.mktemp("typed")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(home),
        str(ROOT),
    ]
    subprocess.run(build, check=True, stdin=subprocess.DEVNULL)
    venv.create(home / "venv")
    packages = home / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    with zipfile.ZipFile(next(home.glob("halfmoon-*.whl"))) as wheel:
        wheel.extractall(packages)
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return home / "venv" / "bin" / "python"


def check(checker, *arguments):
    command = [sys.executable, "-m", checker, *map(str, arguments)]
    return subprocess.run(command, cwd=arguments[-1].parent, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "expected"), [(PROGRAM, EXPECTED), (TYPED_EVENTS, EXPECTED_OF_EVENTS)], ids=["client", "events"]
)
def test_a_program_is_checked_against_the_types_of_the_wheel(installed, tmp_path, source, expected):
    program = tmp_path / "program.py"
    program.write_text(source)

    checked = check("mypy", "--strict", "--python-executable", installed, "--config-file=", program)

    said = re.findall(r"^program\.py:(\d+): (.+?)(?:  \[[\w-]+\])?$", checked.stdout, re.M)
    assert [(int(line), text) for line, text in said] == expected, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="pyright needs Node.js, and would download one")
@pytest.mark.parametrize(("source", "expected"), [(PROGRAM, PYRIGHT), (TYPED_EVENTS, PYRIGHT_OF_EVENTS)], ids=["client", "events"])
def test_pyright_finds_the_same_in_it(installed, tmp_path, source, expected):
    program = tmp_path / "program.py"
    program.write_text(source)

    checked = check("pyright", "--pythonpath", installed, "--outputjson", program)

    findings = json.loads(checked.stdout)["generalDiagnostics"]
    assert [(finding["range"]["start"]["line"] + 1, finding.get("rule", finding["message"])) for finding in findings] == expected, (
        checked.stdout
    )
