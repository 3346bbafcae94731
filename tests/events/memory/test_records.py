"""MemoryBus against the table of states: any sequence of messages, decisions, checks, losses and deaths ends as the table says.

The table is written down here once more, from the model's text and not from the bus's code.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from halfmoon.errors import BrokerError, RequestTimeout
from halfmoon.events.memory.transport import MemoryTransport
from halfmoon.events.testing import MemoryBus
from halfmoon.model import LocalTransactionState, Message, StoredMessage

CHECKS_MAX = 3

SECTION_6 = {
    ("unknown", "commit"): "committed",
    ("unknown", "rollback"): "rolled back",
    ("unknown", "budget spent"): "expired",
    ("expired", "resume"): "unknown",
    ("expired", "commit"): "committed",
    ("expired", "rollback"): "rolled back",
}
"""What changes a state. Whatever is not here changes nothing: terminal states ignore repeats and refuse the opposite."""

OPPOSITE = {("committed", "rollback"), ("rolled back", "commit")}


class States(RuleBasedStateMachine):
    """Any number of processes of one group; ``said`` is what the next check is answered."""

    halves = Bundle("halves")

    def __init__(self) -> None:
        super().__init__()
        self.bus = MemoryBus(checks_max=CHECKS_MAX)
        self.said: str = "unknown"
        self.members = [self._member()]
        self.states: dict[str, str] = {}
        self.checks: dict[str, int] = {}
        """Those that count."""
        self.open: dict[str, MemoryTransport] = {}
        self.visible: list[str] = []
        self.contradictions = self.checks_sent = 0
        self.got: list[str] = []
        self.bus.subscribe("S_all", {"T": "*"}, self._deliver)

    def _member(self) -> MemoryTransport:
        found = self.bus.transport("P")
        found.start(self._answer)
        return found

    def _answer(self, stored: StoredMessage) -> LocalTransactionState:
        if self.said == "raise":
            raise OSError("no database")
        return LocalTransactionState[self.said.upper()]

    def _deliver(self, stored: StoredMessage, attempt: int) -> tuple[bool, str]:
        self.got.append(stored.msg_id)
        return True, ""

    def _move(self, name: str, what: str) -> None:
        state = self.states[name]
        if (state, what) in OPPOSITE:
            self.contradictions += 1
        self.states[name] = new = SECTION_6.get((state, what), state)
        if state in ("unknown", "expired") and new == "committed":
            self.visible.append(name)

    # ------------------------------------------------------------ what publishers do

    @rule(target=halves, lost=st.sampled_from(["nothing", "request", "answer"]))
    def prepare(self, lost: str) -> Any:
        name, member = f"m{len(self.states)}", self.members[-1]
        if lost != "nothing":
            self.bus.fail_next("prepare", stored=lost == "answer")
            with pytest.raises(RequestTimeout):
                member.prepare(Message("T", b"x", msg_id=name), attempt=1, timeout_ms=1, check_after_s=None)
            if lost == "request":
                return multiple()
            attempt = 2
        else:
            attempt = 1
        prepared = member.prepare(Message("T", b"x", msg_id=name), attempt=attempt, timeout_ms=1, check_after_s=None)
        self.states[name], self.checks[name] = "unknown", 0
        self.open[name] = member
        return name, member, prepared

    @rule()
    def send(self) -> None:
        name = f"p{len(self.states)}"
        self.members[-1].send(Message("T", b"x", msg_id=name), attempt=1, timeout_ms=1)
        self.states[name] = "committed"
        self.visible.append(name)

    @rule(half=halves)
    def repeat(self, half: Any) -> None:
        name, message = half[0], Message("T", b"x", msg_id=half[0])
        if self.states[name] in ("unknown", "committed"):
            again = self.members[-1].prepare(message, attempt=2, timeout_ms=1, check_after_s=None)
            assert again.result == half[2].result, "answered as the first time"
            self.members[-1].leave(again)
            if self.open.get(name) is self.members[-1]:
                del self.open[name]
        else:
            with pytest.raises(BrokerError):
                self.members[-1].prepare(message, attempt=2, timeout_ms=1, check_after_s=None)

    @rule(half=halves, commit=st.booleans(), lost=st.booleans())
    def decide(self, half: Any, commit: bool, lost: bool) -> None:
        name, member, prepared = half
        if lost:
            self.bus.lose_second_phase(1)
        member.decide(prepared, commit=commit)
        self.bus.heal()
        if member is self.open.get(name):
            del self.open[name]
        if lost or member.dead:
            return
        self._move(name, "commit" if commit else "rollback")

    @rule(half=halves)
    def leave(self, half: Any) -> None:
        name, member, prepared = half
        member.leave(prepared)
        if member is self.open.get(name):
            del self.open[name]

    @rule()
    def die(self) -> None:
        dead = self.members[-1]
        self.bus.kill(dead)
        self.open = {name: member for name, member in self.open.items() if member is not dead}
        self.members.append(self._member())

    # ------------------------------------------------------------ what the broker does

    @rule(said=st.sampled_from(["commit", "rollback", "unknown", "open", "raise"]))
    def check(self, said: str) -> None:
        self.said = said
        self.bus.check_now()
        for name in [name for name, state in self.states.items() if state == "unknown"]:
            if self.checks[name] >= CHECKS_MAX:
                self._move(name, "budget spent")
                continue
            self.checks[name] += 1
            self.checks_sent += 1
            if name in self.open or said == "open":
                self.checks[name] = 0
            else:
                self._move(name, said)

    @rule()
    def resume(self) -> None:
        for record in self.bus.expired:
            self.bus.resume(record)
            self._move(record.id, "resume")
            self.checks[record.id] = 0

    @rule()
    def deliver(self) -> None:
        self.bus.deliver()
        assert self.got == self.visible

    # ------------------------------------------------------------ what holds always

    @invariant()
    def states_agree(self) -> None:
        bus = self.bus
        found = {one.id: "unknown" for one in bus.pending} | {one.id: "committed" for one in bus.committed}
        found |= {one.id: "rolled back" for one in bus.rolled_back} | {one.id: "expired" for one in bus.expired}
        assert found == self.states
        assert bus.contradictions == self.contradictions
        assert bus.checks_sent == self.checks_sent
        assert len(set(self.visible)) == len(self.visible)


TestStates = States.TestCase
TestStates.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
