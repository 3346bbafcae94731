"""Transactions under random faults: every promise holds, for seeds that once failed and for many others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from halfmoon.broker.send import duplicates
from simulation.history import simulate
from simulation.transactions.producers import FATES, LONG, REPEATED
from simulation.transactions.transactions import Transactions
from simulation.verdict import Verdict
from tests.simulation.faulty import verdict_on
from tests.simulation.transactions.test_planted import UNKNOWING

SEEDS = (*range(1, 11), 20094)  # the last: producers are killed behind a cut, which their broker cannot know
FILE = Path(__file__).parent / "seeds.txt"
KEPT = [line.split() for line in FILE.read_text().splitlines() if line.strip() and line[0] != "#"]


history = partial(verdict_on, Transactions)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_of_transactions_holds(seed: int) -> None:
    assert history(seed).problems == []


@pytest.mark.parametrize(("seed", "flush", "kinds"), KEPT)
def test_a_history_of_transactions_that_once_broke_a_promise_holds(seed: str, flush: str, kinds: str) -> None:
    verdict = simulate(Transactions, 
        int(seed), flush=None if flush == "-" else flush, kinds=None if kinds == "-" else tuple(kinds.split(",")), fates=FATES
    )  # fmt: skip
    assert verdict.problems == [], verdict.summary()


@pytest.mark.mission("001-31", "000-69", "001-21")
def test_lost_second_phases_are_healed_by_checks_in_time() -> None:
    verdict = simulate(Transactions, 1, flush="async", kinds=("producer",), fates={"lost": 1})
    assert verdict.problems == [], verdict.summary()
    assert verdict["committed"] > 20
    assert verdict["checks"] >= verdict["committed"]


def test_members_to_which_no_check_is_their_own_cost_no_promise() -> None:
    verdict = simulate(Transactions, 1, flush="async", kinds=("producer", "kill"), fates={"lost": 1}, strangers=3)
    assert verdict.problems == [], verdict.summary()
    assert verdict["answered by strangers"] > 5
    assert verdict["committed"] > 20


@pytest.mark.parametrize("seed", range(1, 5))
def test_in_a_mixed_group_nothing_expires_while_those_that_know_are_away_and_they_are_found_at_once(seed: int) -> None:
    kinds = ("unknowing", "kill") if seed % 2 else ("unknowing",)
    verdict = simulate(Transactions, seed, **{**UNKNOWING, "kinds": kinds}, flush="async")
    assert verdict.problems == [], verdict.summary()
    assert verdict["expired"] == 0
    assert verdict["answered by strangers"] > 100


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_broker_killed_between_a_visible_record_and_its_op_record_neither_repeats_nor_loses(flush: str) -> None:
    verdicts = [
        simulate(Transactions, seed, flush=flush, kinds=("between", "torn"), steps=14, operators=0, fates={"commit": 1, "slow": 1})
        for seed in (1, 5, 8, 16, 18, 25, 36, 42)
    ]
    assert [verdict.problems for verdict in verdicts] == [[]] * 8
    assert sum(verdict["commits without op record at a start"] for verdict in verdicts) > 0


@pytest.mark.parametrize(
    ("kind", "path"),
    [("behind_half", "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/"), ("mid_round", "transaction/checks/"), ("recovery", "")],
)
def test_a_broker_killed_at_a_bad_moment_keeps_every_promise(kind: str, path: str) -> None:
    verdict = simulate(Transactions, 3, flush="async", kinds=(kind,), steps=10)
    assert verdict.problems == [], verdict.summary()
    assert any(f"is stopped in a write to {path}" in line or "is stopped at its start" in line for line in verdict.lines)


@pytest.mark.mission("004-38")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_after_losses_of_power_the_index_is_what_the_log_says(flush: str) -> None:
    verdict = simulate(Transactions, 2, flush=flush, kinds=("power", "recovery"), steps=10)
    assert verdict.problems == [], verdict.summary()
    assert sum("loses power" in line for line in verdict.lines) > 3


@pytest.mark.mission("004-39")
def test_states_that_stand_on_lost_records_are_made_anew_from_the_redo_log() -> None:
    assert simulate(Transactions, 5, flush="async", kinds=("power",), steps=10).problems == []


@pytest.mark.mission("004-41")
def test_an_index_whose_files_are_gone_is_made_anew_from_the_log() -> None:
    verdict = simulate(Transactions, 1, flush="async", kinds=("index_lost",), steps=8)
    assert verdict.problems == [], verdict.summary()
    assert any("has lost files of its transaction index" in line for line in verdict.lines)
    assert verdict["committed"] > 20


@pytest.mark.mission("000-73")
def test_without_producers_nothing_expires_and_whoever_returns_is_asked() -> None:
    verdict = simulate(Transactions, 
        4, flush="async", kinds=("nobody",), fates={"lost": 1}, steps=2, broker={"transaction_check_max": 5}
    )  # fmt: skip
    assert verdict.problems == [], verdict.summary()
    assert any("are all gone" in line for line in verdict.lines)
    assert verdict["committed"] > 20
    assert verdict["expired"] == 0


@pytest.mark.parametrize("kind", ["ageing", "clock"])
def test_a_clock_that_steps_over_the_retention_gives_nothing_up_and_files_wait(kind: str) -> None:
    verdicts = [
        simulate(Transactions, seed, flush="async", kinds=(kind, "kill"), steps=8, operators=0, fates={"lost": 1, "late": 1})
        for seed in (10, 12)
    ]
    assert [verdict.problems for verdict in verdicts] == [[], []]
    assert all(any("clock is set" in line for line in verdict.lines) for verdict in verdicts)
    assert sum(verdict["expired"] for verdict in verdicts) == 0
    assert sum(verdict["committed"] for verdict in verdicts) > 40


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_where_the_disk_needs_room_what_is_pending_expires_before_its_file_goes(flush: str) -> None:
    verdicts = [
        simulate(Transactions, seed, flush=flush, kinds=("crowded", "kill", "power"), steps=10, fates=FATES | {"never": 4})
        for seed in (1, 2, 3)
    ]
    assert [verdict.problems for verdict in verdicts] == [[], [], []]
    assert sum(verdict["gone with their files"] for verdict in verdicts) > 100
    assert sum(verdict["expired for room"] for verdict in verdicts) > 5


def test_a_broker_killed_between_a_copy_and_its_op_record_makes_no_second_copy() -> None:
    verdicts = [
        simulate(
            Transactions,
            seed,
            flush="async",
            kinds=("behind_copy",),
            steps=12,
            fates=FATES | {"never": 4},
            broker={"transaction_check_max": 2},
        )
        for seed in (1, 2, 3)
    ]
    assert [verdict.problems for verdict in verdicts] == [[], [], []]
    assert sum("TRANS_CHECK_MAX" in line or "OP_HALF" in line for verdict in verdicts for line in verdict.lines) > 0
    assert sum(verdict["expired"] for verdict in verdicts) > 20


@pytest.mark.mission("000-73")
@pytest.mark.parametrize("kinds", [("kill", "behind_resume"), ("power", "recovery"), ("producer", "cut", "lose")])
def test_what_operators_decide_and_resume_breaks_no_promise(kinds: tuple[str, ...]) -> None:
    verdicts = [
        simulate(Transactions, 
            seed, kinds=kinds, steps=8, operators=2, fates=FATES | {"never": 4}, broker={"transaction_check_max": 3}
        )
        for seed in (1, 2)
    ]  # fmt: skip
    assert [verdict.problems for verdict in verdicts] == [[], []]
    assert sum(verdict["by hand"] for verdict in verdicts) > 5
    assert sum(verdict["resumed"] for verdict in verdicts) > 2


@pytest.mark.parametrize("seed", [3, 5])
def test_a_transaction_that_is_open_for_longer_than_all_checks_take_is_never_expired(seed: int) -> None:
    verdict = simulate(Transactions, seed, kinds=(), operators=0, fates={"open": 1}, broker={"transaction_check_max": 3})
    assert verdict.problems == [], verdict.summary()
    assert verdict["expired"] == 0
    assert verdict["committed"] > 3
    assert verdict["answered open"] > 3 * verdict["half"]


def test_with_the_default_budget_open_transactions_outlast_fifteen_checks() -> None:
    verdict = simulate(Transactions, 
        1, flush="async", kinds=(), operators=0, fates={"open": 1},
        broker={"transaction_check_max": 15, "transaction_check_interval_ms": 700},
    )  # fmt: skip
    assert verdict.problems == [], verdict.summary()
    assert verdict["expired"] == 0
    assert verdict["answered open"] > 15 * verdict["half"] // 2 > 0


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("kinds", [(), ("kill", "torn", "behind_copy"), ("power", "recovery"), ("producer", "cut", "lose")])
def test_decisions_after_expiry_are_delivered_once_and_final(flush: str, kinds: tuple[str, ...]) -> None:
    verdicts = [
        simulate(Transactions, 
            seed, flush=flush, kinds=kinds, operators=1, fates=LONG | {"never": 1}, broker={"transaction_check_max": 2}
        )
        for seed in (2, 3)
    ]  # fmt: skip
    assert [verdict.problems for verdict in verdicts] == [[], []]
    assert sum(verdict["committed after that"] for verdict in verdicts) > 1
    assert sum(verdict["expired"] for verdict in verdicts) > 5


def test_contradictions_are_refused() -> None:
    verdict = simulate(Transactions, 5, flush="sync", kinds=("kill",), fates={"contradicted": 1})
    assert verdict.problems == [], verdict.summary()
    assert verdict["refused"] > 20


def test_histories_of_transactions_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in range(1, 5)]
    assert sum(verdict["committed"] for verdict in verdicts) > 150
    assert sum(verdict["rolled back"] for verdict in verdicts) > 80
    assert sum(verdict["checks"] for verdict in verdicts) > 100
    assert sum(verdict["expired"] for verdict in verdicts) > 0


def repeated(seed: int, flush: str) -> Verdict:
    """Return the verdict on a history whose producers send again under the same id what was not answered."""
    return simulate(Transactions, seed, flush=flush, kinds=("cut", "kill"), fates={REPEATED: 1}, brokers=1, operators=0)


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", [4, 8])
def test_a_half_message_that_is_sent_again_under_its_id_is_stored_once(seed: int, flush: str) -> None:
    verdict = repeated(seed, flush)
    assert verdict.problems == [], verdict.summary()
    assert verdict["committed"] > 20


def test_a_broker_that_stores_repeats_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "messages_with", lambda store, topic, key: [])
    verdicts = [repeated(seed, "async") for seed in (4, 8)]
    assert any(problem.startswith("repeated: ") for verdict in verdicts for problem in verdict.problems)
