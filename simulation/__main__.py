"""Run simulated histories of a whole cluster and print them with the verdict: messages, transactions, order, polls, redelivery.

    python -m simulation --seed 7                   one history of each, in full
    python -m simulation --seed 1 --seeds 200       seeds 1 to 200, a line each; those that broke a promise with the reason
    python -m simulation --seed 7 --flush sync --kinds kill,power --steps 20

The same seed and options give the same history, on any machine. Exit code 1 when a promise was broken. Prints, decides nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from simulation.batches.history import BatchFaults, simulate_batches
from simulation.delays.history import DelayFaults, simulate_delays
from simulation.faults import Faults
from simulation.history import STEPS
from simulation.messages.history import simulate
from simulation.order.history import KINDS, simulate_order
from simulation.polls.history import KINDS as POLL_KINDS
from simulation.polls.history import simulate_polls
from simulation.redelivery.history import RedeliveryFaults, simulate_redelivery
from simulation.topics.history import KINDS as DELETED_KINDS
from simulation.topics.history import simulate_deleted
from simulation.transactions.faults import TxFaults
from simulation.transactions.history import simulate_transactions
from simulation.verdict import Verdict

WORKLOADS: dict[str, Callable[..., Verdict]] = {
    "batches": simulate_batches, "delays": simulate_delays, "deleted": simulate_deleted, "messages": simulate,
    "order": simulate_order, "polls": simulate_polls, "redelivery": simulate_redelivery, "transactions": simulate_transactions,
}  # fmt: skip
KINDS_OF = {
    "batches": set(BatchFaults.KINDS),
    "delays": set(DelayFaults.KINDS), "deleted": set(DELETED_KINDS), "messages": set(Faults.KINDS), "order": set(KINDS),
    "redelivery": set(RedeliveryFaults.KINDS),
    "polls": set(POLL_KINDS), "transactions": set(TxFaults.KINDS),
}  # fmt: skip


def main() -> int:
    """Run the histories that the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description="Run simulated histories of a cluster.")
    parser.add_argument("--seed", type=int, default=1, help="the (first) seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--steps", type=int, default=STEPS, help="faults of each history")
    parser.add_argument("--flush", choices=("sync", "async"), help="flush mode; default: drawn from the seed")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="what the users do; default: one history of each")
    parser.add_argument(
        "--kinds",
        help=f"kinds of faults, joined by commas, of {', '.join(Faults.KINDS)}; of transactions also of"
        f" {', '.join(kind for kind in TxFaults.KINDS if kind not in Faults.KINDS)}; of order {', '.join(KINDS)};"
        " of polls also seek; of deleted topics also busy; of redelivery also consumer;"
        " default: drawn from the seed",
    )
    options = parser.parse_args()
    kinds = None if options.kinds is None else tuple(kind for kind in options.kinds.split(",") if kind)
    chosen = [options.workload] if options.workload else sorted(WORKLOADS)
    workloads = [workload for workload in chosen if set(kinds or ()) <= KINDS_OF[workload]]
    if not workloads:
        parser.error(f"unknown kinds, or not known together: {', '.join(kinds or ())}")
    bad: list[int] = []
    begun = time.monotonic()
    for seed in range(options.seed, options.seed + options.seeds):
        for workload in workloads:
            verdict = WORKLOADS[workload](seed, steps=options.steps, flush=options.flush, kinds=kinds)
            _print(verdict, whole=options.seeds == 1)
            if verdict.problems and seed not in bad:
                bad.append(seed)
    if options.seeds > 1:
        print(f"{options.seeds * len(workloads)} histories in {time.monotonic() - begun:.0f} s; broken: {bad or 'none'}")
    return 1 if bad else 0


def _print(verdict: Verdict, *, whole: bool) -> None:
    if whole:
        print("\n".join(verdict.lines))
    print(verdict.summary())
    for problem in verdict.problems[: None if whole else 5]:
        print(f"    {problem[:500]}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
