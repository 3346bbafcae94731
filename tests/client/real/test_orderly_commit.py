"""Orderly consumption without auto commit over real sockets: commits, rollbacks, a kill -9 in the middle, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halfmoon import Admin, Message, Producer
from halfmoon.testing.local import LocalCluster
from tests.waiting import until

pytestmark = pytest.mark.slow

TOPIC, GROUP = "kept_back", "C_kept_back"
QUEUES, EACH, EVERY = 4, 23, 5
Call = tuple[int, str]
"""The offset that a call got, and the answer that it gave."""


@contextmanager
def member(cluster: LocalCluster, ledger: Path, *, every: int = EVERY, rollback_at: int = -1) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [cluster.nameserver, GROUP, TOPIC, str(every), str(rollback_at), str(ledger)]
    process = subprocess.Popen([sys.executable, "-m", "tests.client.real.keeping_back", *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def calls(ledger: Path) -> dict[int, list[Call]]:
    """Return what a process noted, by queue; a last line that is not whole is left out."""
    found: dict[int, list[Call]] = {number: [] for number in range(QUEUES)}
    for line in (ledger.read_text().rpartition("\n")[0] if ledger.exists() else "").splitlines():
        queue, offset, answer = line.split()
        found[int(queue)].append((int(offset), answer))
    return found


def all_queues(ledger: Path, ready: Callable[[list[Call]], bool]) -> None:
    """Wait until something holds of every queue's calls."""
    until(lambda: all(map(ready, calls(ledger).values())))


def committed(said: list[Call], begin: int = 0) -> int:
    """Return the offset up to which a queue's calls were committed."""
    return max((offset + 1 for offset, answer in said if answer == "COMMIT"), default=begin)


def in_order(said: list[Call], begin: int) -> bool:
    """Return whether calls went on one by one from an offset, and after a ROLLBACK from the last COMMIT."""
    wanted, kept = begin, begin
    for offset, answer in said:
        if offset != wanted:
            return False
        kept = offset + 1 if answer == "COMMIT" else kept
        wanted = kept if answer == "ROLLBACK" else offset + 1
    return True


def test_what_no_commit_confirmed_comes_again_after_a_rollback_a_kill_and_a_close(tmp_path: Path):
    with LocalCluster(tmp_path / "store") as cluster, Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(TOPIC, queue_count=QUEUES)
        with Producer(group="P", nameserver=cluster.nameserver) as producer:
            for queue in producer.queues(TOPIC):
                for number in range(EACH):
                    producer.send(Message(TOPIC, b"%d" % number), queue=queue)

        first, second, third = (tmp_path / name for name in ("first", "second", "third"))
        with member(cluster, first, rollback_at=7) as process:
            all_queues(first, lambda said: committed(said) >= 10 and len(said) > 12)
            process.kill()
            process.wait()
        with member(cluster, second) as process:
            all_queues(second, lambda said: any(offset == EACH - 1 for offset, _ in said))
            process.terminate()
            assert process.wait(60) == 0
        with member(cluster, third, every=1) as process:
            all_queues(third, lambda said: committed(said) == EACH)
            process.terminate()
            assert process.wait(60) == 0
        assert admin.lag(GROUP) == 0

    for queue in range(QUEUES):
        before, after, last = (calls(one)[queue] for one in (first, second, third))
        assert before[7][1] == "ROLLBACK"
        assert before[8][0] == 5
        assert in_order(before, 0)
        assert after[0][0] <= committed(before), "what no commit had confirmed was lost"
        assert in_order(after, after[0][0])
        assert [offset for offset, _ in last] == [20, 21, 22], "a close keeps what was committed, and nothing more"
