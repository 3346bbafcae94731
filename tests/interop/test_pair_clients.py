"""Clients of every kind go on at the next master of a pair, after a kill and after a planned switch, without a restart."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon import ConsumeFrom, Message, Producer, PushConsumer
from tests.interop.failover_load import everything
from tests.interop.ours import COMMAND
from tests.interop.pair_clients import (
    DECIDED,
    DELAY_MS,
    KINDS,
    LATER,
    LOAD,
    WITHIN_S,
    Clients,
    Outcome,
    committed,
    longest_pause_ms,
    out_of_order,
    owners,
    repeated,
)
from tests.interop.pairs import NAME, Pair
from tests.runtime.leases.systems import EtcdSystem, system
from tests.waiting import until

pytestmark = pytest.mark.slow
SETTINGS = {"transactionTimeOut": 8000, "transactionCheckInterval": 1000, "messageDelayLevel": "1s 20s"}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair that is complete."""
    lease = system("etcd", tmp_path)
    assert isinstance(lease, EtcdSystem)
    made = Pair(tmp_path / "pair", lease.server.url("halfmoon"), settings=SETTINGS)
    try:
        made.start("a")
        made.start("b")
        made.wait_complete()
        yield made
    finally:
        made.close()
        lease.close()


@pytest.fixture
def clients(pair: Pair, tmp_path: Path) -> Iterator[Callable[[str], Clients]]:
    """Return ``clients(kind)``: started clients of that kind."""
    made: list[Clients] = []

    def start(kind: str) -> Clients:
        made.append(Clients(KINDS[kind], tmp_path / kind, pair.nameserver))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.peer.stop()


def other(name: str) -> str:
    """Return the other member."""
    return "b" if name == "a" else "a"


def address(pair: Pair, name: str) -> str:
    """Return the address of a member."""
    return f"127.0.0.1:{pair.ports[name]}"


class Takeover:
    """The master is killed while clients use it: what they left behind, and what became of it."""

    def __init__(self, pair: Pair, clients: Clients) -> None:
        self.pair, self.clients = pair, clients
        self.before: dict[str, dict[int, int]] = {}
        self.doubt: dict[str, str] = {}

    def progress(self, group: str, member: str) -> dict[int, int]:
        """Return a group's progress at a member."""
        return committed(self.pair.nameserver, group, address(self.pair, member))

    def run(self) -> Outcome:
        """Kill the master under load, wait for the other, and return what became of the load."""
        master = self.pair.master()
        assert master is not None
        follower = other(master)
        self.clients.load("killed")
        self.clients.goes_on()
        for group in ("push", "orderly"):
            until(lambda: sum(self.progress(group, master).values()) > 0, "a commit", within_s=WITHIN_S)  # noqa: B023
            self.before[group] = known = self.progress(group, master)
            copied = lambda: _reaches(self.progress(group, follower), known)  # noqa: B023, E731
            until(copied, "the follower to have the progress", within_s=60)
        self.later = self.clients.delay()
        if self.clients.kind.has_transactions:
            doubt, checked = self.clients.leave_in_doubt(), self.clients.checked()
            self.doubt = {body: check for body, check in doubt.items() if body not in checked}
            assert self.doubt, "the machine is too slow: the first master asked about all of them"
        last = {group: self.progress(group, master) for group in self.before}
        self.pair.kill(master)
        self.killed_ms = time.time_ns() // 1_000_000
        until(lambda: self.pair.master() == follower, "a takeover", within_s=60)
        for group, known in self.before.items():
            now = self.progress(group, follower)
            assert _reaches(now, known), f"{group}: {known} was committed, and {now} is left"
            lost = sum(max(0, offset - now.get(queue, 0)) for queue, offset in last[group].items())
            print(f"progress of {group} at the next master: {lost} messages behind that of the last,", end=" ")
        self.clients.goes_on()
        outcome = self.clients.finish()
        self.pair.start(master)
        self.pair.wait_complete()
        return outcome

    def check_delays(self) -> None:
        """Check that delayed messages come from the new master, and not before their time."""
        got = self.clients.wait_received("later", self.later)
        early = [each for each in got if each["at_ms"] - each["born_ms"] < DELAY_MS or each["at_ms"] < self.killed_ms]
        assert early == []
        stored = Counter(everything(self.pair.nameserver, LATER).values())
        assert stored == dict.fromkeys(self.later, 1)

    def check_transactions(self, decided: dict[str, str]) -> int:
        """Check that the new master asked about what was in doubt, and holds what was answered; return the time that it took."""
        until(lambda: self.doubt.keys() <= self.clients.checked(), "checks of transactions in doubt", within_s=WITHIN_S)
        until(lambda: self.clients.commits("after"), "a transaction after the takeover", within_s=WITHIN_S)
        outcomes = {**decided, **self.doubt, "after": "COMMIT_MESSAGE"}
        commits = {body for body, check in outcomes.items() if check == "COMMIT_MESSAGE"}
        got = self.clients.wait_received("decided", commits)
        found = [each for each in got if outcomes.get(each["body"]) == "ROLLBACK_MESSAGE"]
        assert found == [], "rolled back, and delivered"
        stored = Counter(everything(self.pair.nameserver, DECIDED).values())
        twice = {body for body, count in stored.items() if count > 1 and body in self.doubt | decided}
        assert not twice or self.clients.kind is not KINDS["python"], "ours say that they repeat a send, and it is stored once"
        # Others repeat a send whose answer the kill took under its id alone (docs/transactions.md, Duplicates).
        assert [body for body in twice if body in self.doubt or not _is_one_message(got, body)] == [], "delivered twice"
        asked = [each for each in got if each["body"] in self.doubt]
        return int(max(each["at_ms"] for each in asked)) - self.killed_ms


def _is_one_message(got: list[dict[str, Any]], body: str) -> bool:
    """Return whether all messages with a body have one id."""
    return len({each["msg_id"] for each in got if each["body"] == body}) == 1


def _reaches(progress: dict[int, int], known: dict[int, int]) -> bool:
    """Return whether a progress is as far as another one in every queue."""
    return all(progress.get(queue, 0) >= offset for queue, offset in known.items())


def switch(pair: Pair) -> None:
    """Switch the master as an operator does."""
    master = pair.master()
    assert master is not None
    command = [str(COMMAND), "cluster", "switch", NAME, "-n", pair.nameserver]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    until(lambda: pair.master() == other(master), "the other member to be the master", within_s=60)


def after_a_restart(nameserver: str, group: str) -> list[str]:
    """Return what comes again to a group whose consumer was closed, when another one takes its place."""
    got: list[str] = []
    consumer = PushConsumer(group=group, nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, instance_name="next")
    consumer.subscribe(LOAD)
    consumer.on_message(lambda messages: got.extend(bytes(message.body).decode() for message in messages))
    with consumer, Producer(group="last", nameserver=nameserver) as producer:
        queues = producer.queues(LOAD)
        for queue in queues:
            producer.send(Message(LOAD, b"last-%d" % queue.queue_id), queue=queue)
        wanted = {f"last-{queue.queue_id}" for queue in queues}
        until(lambda: wanted <= set(got), "the next consumer to be at the end of each queue", within_s=WITHIN_S)
    return [body for body in got if body not in wanted]


@pytest.mark.parametrize("kind", list(KINDS))
def test_clients_go_on_at_the_next_master_and_miss_nothing(kind: str, pair: Pair, clients: Callable[[str], Clients]) -> None:
    mine = clients(kind)
    takeover = Takeover(pair, mine)
    killed = takeover.run()
    mine.load("switched")
    mine.goes_on()
    switch(pair)
    mine.goes_on()
    switched = mine.finish()

    acknowledged = killed.acknowledged | switched.acknowledged
    views: dict[str, list[dict[str, Any]]] = {name: mine.wait_received(name, acknowledged) for name in ("push", "orderly")}
    # A queue may go to another member and back at each change of the master.
    assert out_of_order(views["orderly"], steps_back_max=4) == []
    takeover.check_delays()
    asked_ms = takeover.check_transactions(killed.decided | switched.decided) if takeover.doubt else 0
    mine.stop("push")
    again = after_a_restart(pair.nameserver, "push")
    pauses = {name: [longest_pause_ms(view, phase) for phase in ("killed", "switched")] for name, view in views.items()}
    print(f"{kind}: without a send {killed.longest_ms} ms after the kill, {switched.longest_ms} ms for the switch;", end=" ")
    print(
        f"failed {killed.failed} and {switched.failed}; {len(acknowledged)} acknowledged; without a message {pauses} ms;", end=" "
    )
    print(f"came again { {name: repeated(view) for name, view in views.items()} }, to the next consumer {len(again)};", end=" ")
    print(f"owners of queues { {queue: len(each) for queue, each in owners(views['orderly']).items()} };", end=" ")
    print(f"decided after {asked_ms} ms; {Counter(failure.partition(':')[0] for failure in killed.failures + switched.failures)}")
    assert again == [], "its progress was lost"
    if kind == "python":
        assert (killed.failures, switched.failures) == ([], [])
