"""Faults of a pair's history, drawn from its seed: each begins, and ends after a while."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

from tests.simulation.pairs.member import SimMember

if TYPE_CHECKING:
    from tests.simulation.pairs.history import PairHistory

KINDS = (
    "apart", "one_way", "lease_cut", "lease_odd", "clients_cut", "pause", "kill", "torn", "power", "full", "date", "edit",
    "hand_over", "stop", "late_join",
)  # fmt: skip
EDITS = (
    b"{}", b"\xff", b'{"format":2}',
    b'{"broker":"pair/other","epoch":9,"holder":"x","address":"1.2.3.4:5","in_sync":["x"],"lease_ms":1,"format":1,"renewal":0}',
)  # fmt: skip


class PairFaults:
    """What happens to a pair: one method a kind; each begins a fault, and returns what ends it."""

    def __init__(self, history: PairHistory) -> None:
        self._history, self._timeline = history, history.timeline
        self._random = history.timeline.split("faults")
        self._ends: list[Callable[[], None]] = []

    def begin(self, kinds: list[str], within_ms: int) -> None:
        """Let faults begin within a time."""
        for kind in kinds:
            self._timeline.after(self._random.randint(0, within_ms), lambda kind=kind: self._strike(kind))  # type: ignore[misc]

    def _strike(self, kind: str) -> None:
        if self._history.is_healed:
            return
        member = self._random.choice(self._history.members)
        self._timeline.note("fault", f"{kind} {member.name}")
        end = getattr(self, f"_{kind}")(member)
        if end is not None:
            self._ends.append(end)
            lasts_ms = self._random.choice((100, 400, 1500, 4000, 9000))
            self._timeline.after(self._random.randint(lasts_ms // 2, lasts_ms), lambda: self._finish(end))

    def _finish(self, end: Callable[[], None]) -> None:
        if end in self._ends:
            self._ends.remove(end)
            end()

    def heal(self) -> None:
        """End all faults."""
        for end in list(self._ends):
            self._finish(end)

    # ------------------------------------------------------------ connections

    def _block(self, ways: list[tuple[str, str]]) -> Callable[[], None]:
        network = self._history.network
        network.block(ways, is_blocked=True)
        return lambda: network.block(ways, is_blocked=False)

    def _one_way(self, member: SimMember) -> Callable[[], None]:
        other = self._history.other(member)
        return self._block(list(product(member.process.hosts, other.process.hosts)))

    def _apart(self, member: SimMember) -> Callable[[], None]:
        one, other = member.process.hosts, self._history.other(member).process.hosts
        return self._block([*product(one, other), *product(other, one)])

    def _clients_cut(self, member: SimMember) -> Callable[[], None]:
        users = [user.host for user in self._history.users]
        return self._block([*product(users, [member.host]), *product([member.host], users)])

    # ------------------------------------------------------------ the lease

    def _lease_cut(self, member: SimMember) -> Callable[[], None]:
        leases = self._history.leases
        cut = {member.name} if self._random.random() < 0.6 else {"a", "b"}
        leases.cut |= cut
        return lambda: leases.cut.difference_update(cut)

    def _lease_odd(self, member: SimMember) -> Callable[[], None]:
        leases = self._history.leases
        leases.odd = self._random.choice((0.2, 0.5, 0.9))

        def end() -> None:
            leases.odd = 0.0

        return end

    def _late_join(self, member: SimMember) -> Callable[[], None]:
        """Kill the follower when the master writes that it has joined, and let that write happen when it is back."""
        leases = self._history.leases

        def begin() -> None:
            for each in self._history.members:
                if each.broker is None:
                    each.kill()
            self._timeline.after(650, self._history.start_all)

        def end() -> None:
            leases.late_join = None

        leases.late_join = begin
        return end

    def _edit(self, member: SimMember) -> Callable[[], None] | None:
        leases = self._history.leases
        text = leases.text
        if text is None or text in EDITS:
            return None
        leases.edit(self._random.choice(EDITS))
        return lambda: leases.edit(text)

    # ------------------------------------------------------------ processes and machines

    def _pause(self, member: SimMember) -> Callable[[], None] | None:
        process = member.process
        if process.is_paused or not member.is_running:
            return None
        process.is_paused = True

        def end() -> None:
            if process.is_paused:
                process.go_on()
                self._history.network.wake()

        return end

    def _kill(self, member: SimMember) -> Callable[[], None]:
        member.kill()
        return self._history.start_all

    def _stop(self, member: SimMember) -> Callable[[], None]:
        member.hand_over(stop=True)
        return self._history.start_all

    def _hand_over(self, member: SimMember) -> None:
        for each in self._history.members:
            each.hand_over(stop=False)

    def _torn(self, member: SimMember) -> Callable[[], None]:
        member.disk.stop_after_writes = self._random.choice((0, 1, 3, 10, 50))
        return self._history.start_all

    def _power(self, member: SimMember) -> Callable[[], None] | None:
        if not self._history.may_lose_power(member):
            return None
        self._history.ledger.has_lost_power = True
        member.kill(power=True)
        return self._history.start_all

    def _full(self, member: SimMember) -> Callable[[], None]:
        disk = member.disk
        disk.full = True

        def end() -> None:
            disk.full = False

        return end

    def _date(self, member: SimMember) -> None:
        member.process.clock_ahead_ms += self._random.choice((-3_600_000, -5000, 5000, 3_600_000))
