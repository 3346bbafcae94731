"""Every command at a terminal of 80 columns: helps, and lists with the longest names and Chinese texts."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator

import pytest

from halfmoon import Admin, Message, Producer, PullConsumer, PushConsumer, TransactionProducer
from halfmoon.cli.main import main
from halfmoon.cli.shared.command_group import COMMANDS
from halfmoon.cli.shared.output import width_of
from tests.cli.test_main import every_command
from tests.waiting import until

pytestmark = pytest.mark.slow

COLUMNS = 80
TOPIC, GROUP = "orders_of_the_whole_world_" * 4 + "x" * 20, "consumers_of_the_shop_" * 5
TAG, KEY, BODY = "支付成功" * 10, "訂單編號" * 20, "客戶已經付款，請盡快發貨。" * 40
WORDS = sorted({(), *((name,) for name in COMMANDS), *(tuple(name.split()) for name, _ in every_command())})

LISTS = [
    ("topic list",), ("topic list --all",), ("topic show", TOPIC), ("topic trim --offset 0 --dry-run", TOPIC), ("group list",),
    ("group show", GROUP), ("group lag", GROUP), ("group reset --to-earliest --dry-run", GROUP, TOPIC), ("consume", TOPIC),
    ("consume --last 1", TOPIC), ("msg find --since 1h", TOPIC), ("msg find", TOPIC, "--key", KEY), ("tx pending",),
    ("tx expired",), ("tx status",), ("tx batches",), ("delay list",), ("dlq list",), ("dlq report",), ("client list",),
    ("cluster",), ("status",), ("config get",), ("docs",), ("doctor",), ("context list",),
]  # fmt: skip
ELSEWHERE = {
    *("acl list", "console user list"),  # accounts and users: tests/cli/acl, tests/cli/console
    *("events list", "outbox list", "outbox sent"),  # modules and databases: tests/cli/test_events.py, tests/cli/outbox
    "sql",  # tests/cli/sql
    *("spark trace", "spark sql", "spark dlq list", "spark dlq report"),  # sessions of Spark
    *("spark dlq replay", "spark replay", "dlq replay", "msg dump"),  # changes, files
}


class Screen(io.TextIOWrapper):
    """Standard output that is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", newline="")

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return what is shown, without colours."""
        self.flush()
        return re.sub("\x1b\\[[0-9;]*m", "", self.buffer.getvalue().decode()).splitlines()


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """Run a command at a terminal; return its exit code and the lines that it shows."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[int, list[str]]:
        with monkeypatch.context() as patch:
            screen = Screen()
            patch.setattr(sys, "stdout", screen)
            code = main(arguments)
        return code, screen.lines()

    return run


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_the_help_of_every_command_fits_and_names_values_in_words(shown, words):
    code, lines = shown(*words, "--help")

    assert code == 0
    assert [line for line in lines if width_of(line) > COLUMNS] == []
    assert [line for line in lines if re.search(r"<\w+>|\[\[|\]\.\.\.\]|\b(INTEGER|FLOAT|BOOLEAN|RANGE)\b", line)] == []


@pytest.fixture(scope="module")
def full(cluster) -> Iterator[str]:
    """A cluster with long and Chinese names: messages, a dead letter, a delayed one, a half message, and clients of a group."""
    address = cluster.nameserver
    with Admin(nameserver=address) as admin:
        admin.create_topic(TOPIC, queue_count=2)
    message = Message(TOPIC, BODY.encode(), tag=TAG, keys=[KEY], properties={"客戶": BODY[:200]})

    def give_up(messages, context) -> None:
        context.delay_level = -1
        raise TimeoutError(BODY)

    shop = PushConsumer(group=GROUP, nameserver=address)
    shop.subscribe(TOPIC)
    shop.on_message(give_up)
    with (
        Producer(group="P_" + GROUP, nameserver=address) as producer,
        TransactionProducer(group="P_" + GROUP, nameserver=address, check=lambda _: None) as transactions,
        shop,
        PullConsumer(group="C_" + GROUP, nameserver=address) as reader,
        Admin(nameserver=address) as admin,
    ):
        reader.subscribe(TOPIC)
        reader.poll(100)
        with transactions.half(message) as half:
            half.leave()
        until(lambda: shop.assignment())
        for _ in range(3):
            producer.send(message)
        later = Message(TOPIC, BODY.encode(), tag=TAG, keys=[KEY])
        later.delay = 3600
        producer.send(later)
        until(lambda: admin.dead_letters(group=GROUP))
        yield address


@pytest.mark.parametrize("words", LISTS, ids=lambda words: words[0])
def test_lists_with_long_and_chinese_names_fit(shown, full, monkeypatch, words):
    monkeypatch.setenv("NAMESRV_ADDR", full)
    command, *names = words

    code, lines = shown(*command.split(), *names)

    assert code in (0, 1)  # 1: a finding
    assert lines
    # A cell that stays whole, and is wider than the terminal, has a line of its own. Sentences wrap.
    assert [line for line in lines if width_of(line) > COLUMNS and "  " in line.strip()] == []


def test_every_command_that_lists_is_tried():
    finding = {name for name, command in every_command() if any("--fail-if-empty" in param.opts for param in command.params)}
    tried = {" ".join(word for word in words[0].split() if not word.startswith("-")) for words in LISTS}

    assert {name for name in finding if not any(each.startswith(name) for each in tried)} == ELSEWHERE
