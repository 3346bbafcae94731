"""The checkers of redelivery find in a few calls what each is for."""

from __future__ import annotations

from simulation.ledger import Ledger
from simulation.redelivery.checkers import FOR_EVER, Dead, Handed, RedeliveryLedger, check_redelivery


def handed(times: int, store_ms: int, *, good: bool = False, level: int = 0) -> Handed:
    return Handed(store_ms, b"m", "broker-a", f"copy {times}", times > 0, times, store_ms, good, level, "why")


def ledger(*calls: Handed, fate: int, dead: Dead | None = None) -> RedeliveryLedger:
    facts = RedeliveryLedger(Ledger("sync"), "orders", 2, (1000, 2000, 3000))
    facts.fates[b"m"], facts.acked[b"m"], facts.handed = fate, (0, "broker-a"), list(calls)
    facts.dead = [dead] if dead else []
    return facts


def checkers(facts: RedeliveryLedger) -> list[str]:
    return [problem.partition(":")[0] for problem in check_redelivery(facts)]


def test_a_message_that_works_at_last_or_is_dead_after_its_tries_is_well() -> None:
    assert checkers(ledger(handed(0, 0), handed(1, 3000, good=True), fate=1)) == []
    assert checkers(ledger(handed(0, 0), handed(1, 3000), fate=FOR_EVER, dead=Dead(b"m", 2, "orders", "why"))) == []


def test_a_message_that_is_nowhere_is_lost() -> None:
    assert checkers(ledger(handed(0, 0), fate=1)) == ["lost"]


def test_a_copy_that_comes_before_its_level_is_early() -> None:
    assert checkers(ledger(handed(0, 0), handed(1, 2999, good=True), fate=1)) == ["early"]


def test_a_dead_letter_that_would_have_worked_and_shows_another_origin_is_found() -> None:
    facts = ledger(handed(0, 0), fate=1, dead=Dead(b"m", 1, "payments", "why"))
    assert checkers(facts) == ["dead", "shown"]
