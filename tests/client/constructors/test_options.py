"""Settings by keyword as type checkers see them: each right line is accepted, each wrong one is reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.generate_options import MODULE, module
from tools.generated import write_or_check

ROOT = Path(__file__).parents[3]
HEAD = """\
from pathlib import Path

from halfmoon import (
    Admin, AsyncAdmin, AsyncProducer, AsyncPullConsumer, AsyncPushConsumer, AsyncTransactionProducer, ConsumeFrom, MessageModel,
    Message, Producer, ProducerSettings, PullConsumer, PushConsumer, TransactionProducer,
)
from halfmoon.broker.settings import VipChannel
from halfmoon.client.ranges import Ranges
from halfmoon.events import Consumers, Publisher, run, run_async
from halfmoon.testing.local import LocalCluster
from halfmoon.testing.world import World

ADDRESS = "127.0.0.1:9876"
"""
RIGHT = """\
Producer(group="P_shop", nameserver=ADDRESS, send_timeout_ms=500, retry_codes=[2], use_tls=None)
Producer(ProducerSettings(group="P_shop"), linger_ms=5)
AsyncProducer(nameserver=["127.0.0.1:9876", "127.0.0.2:9876"], group="P_shop")
TransactionProducer(group="P_shop", check_threads=2, check=None)
AsyncTransactionProducer(group="P_shop", linger_ms=0)
PushConsumer(group="C_shop", consume_from=ConsumeFrom.FIRST_OFFSET, model=MessageModel.BROADCASTING, threads=4)
AsyncPushConsumer(group="C_shop", orderly=True, allocate=None)
PullConsumer(group="C_shop", poll_timeout_ms=10)
AsyncPullConsumer(group="C_shop", auto_commit=False)
Admin(nameserver=ADDRESS, signed_addresses=ADDRESS)
AsyncAdmin(nameserver=ADDRESS, access_key="k", secret_key="s")
Ranges(nameserver=ADDRESS, in_flight=2)
Publisher("P_shop", ADDRESS, tries_max=1, send_timeout_ms=100, body_bytes_max=10)
Publisher(group="P_shop", nameserver=ADDRESS, default="plain", check_threads=2)
Consumers(nameserver=ADDRESS, threads=2, close_wait_ms=10, groups={"S_mail": {"threads": 1}})
run("shop.consumers", nameserver=ADDRESS, orderly=True, dedup_keep_s=60)
World().producer("P_test", linger_ms=1)
World(seed=7, store={"flush_disk_type": "SYNC_FLUSH"}, auto_create_topics=False, default_queue_count=1)
LocalCluster(Path("store"), {"flushDiskType": "SYNC_FLUSH", "broker.topics_max": 100})
LocalCluster(Path("store"), flush_disk_type="SYNC_FLUSH", acl_enable=True, vip_channel=VipChannel.NEVER)
""".splitlines()
WRONG = """\
Producer(groop="P_shop")
Producer(group=7)
Producer("P_shop", ADDRESS)
AsyncProducer(send_timeout="3 s")
TransactionProducer(check_thread=2)
AsyncTransactionProducer(threads=2)
PushConsumer(group="C_shop", consume_from="first")
AsyncPushConsumer(ordered=True)
PullConsumer(threads=4)
AsyncPullConsumer(auto_commit="yes")
Admin(group="P_shop")
AsyncAdmin(name_server=ADDRESS)
Ranges(in_flights=2)
Publisher("P_shop", namserver=ADDRESS)
Publisher("P_shop", linger_ms="5")
Consumers(thread=2)
Consumers(nameserver=7)
run("shop.consumers", close_wait="10 s")
run_async("shop.consumers", dedup_keep="7 d")
World().producer("P_test", threads=1)
Producer().send_sync
World(auto_create_topic=False)
World(default_queue_count="1")
World(store={"flush_disk": "SYNC_FLUSH"})
World(port=9876)
LocalCluster(Path("store"), flushDiskType="SYNC_FLUSH")
LocalCluster(Path("store"), acl_enable="true")
LocalCluster(Path("store"), topics_max=100)
Message("orders", "paid")
Message("orders", b"paid", tags="A")
""".splitlines()


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return what mypy says of the lines of `RIGHT` and `WRONG`, by the number of a line among them."""
    page = tmp_path_factory.mktemp("page") / "page.py"
    page.write_text(HEAD + "\n".join([*RIGHT, *WRONG]) + "\n")
    options = [
        "--config-file",
        "",
        "--strict",
        "--hide-error-context",
        "--no-color-output",
        "--cache-dir",
        str(page.parent / "cache"),
    ]
    command = [sys.executable, "-m", "mypy", *options, str(page)]
    environment = {"MYPYPATH": str(ROOT / "src"), "PATH": ""}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=page.parent).stdout
    found = re.findall(r"page\.py:(\d+): error: (.*)", said)
    assert found, said
    return {int(line) - len(HEAD.splitlines()): text for line, text in reversed(found)}


@pytest.mark.slow
def test_each_right_line_is_accepted(reported: dict[int, str]):
    assert {RIGHT[line - 1]: text for line, text in reported.items() if line <= len(RIGHT)} == {}


@pytest.mark.slow
def test_each_wrong_line_is_reported(reported: dict[int, str]):
    assert [line for number, line in enumerate(WRONG, len(RIGHT) + 1) if number not in reported] == []


def test_the_options_are_those_of_the_settings_classes():
    assert write_or_check(MODULE, module(), ["--check"]) == 0
