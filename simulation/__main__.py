"""Run simulated histories of a whole cluster and print them, each with its verdict.

    python -m simulation --seed 7                   one history of each workload, in full
    python -m simulation --seed 1 --seeds 200       seeds 1 to 200, one line each; the broken ones with their problems
    python -m simulation --seed 7 --flush sync --kinds kill,power --steps 20

The same seed and options give the same history on any machine. The exit code is 1 if a history broke a promise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from simulation.batches.history import BatchFaults, simulate_batches
from simulation.delays.history import DelayFaults, simulate_delays
from simulation.faults import Faults
from simulation.history import STEPS
from simulation.messages.history import simulate
from simulation.order import history as order
from simulation.polls import history as polls
from simulation.redelivery.history import RedeliveryFaults, simulate_redelivery
from simulation.topics import history as topics
from simulation.topics import waiting
from simulation.transactions.faults import TxFaults
from simulation.transactions.history import simulate_transactions
from simulation.verdict import Verdict


class Workload(NamedTuple):
    """What users do: the function that runs the history of a seed, and the kinds of faults that it knows."""

    simulate: Callable[..., Verdict]
    kinds: tuple[str, ...]


WORKLOADS = {
    "batches": Workload(simulate_batches, BatchFaults.KINDS),
    "delays": Workload(simulate_delays, DelayFaults.KINDS),
    "deleted": Workload(topics.simulate_deleted, topics.KINDS),
    "messages": Workload(simulate, Faults.KINDS),
    "order": Workload(order.simulate_order, order.KINDS),
    "polls": Workload(polls.simulate_polls, polls.KINDS),
    "redelivery": Workload(simulate_redelivery, RedeliveryFaults.KINDS),
    "waiting": Workload(waiting.simulate_waiting, waiting.KINDS),
    "transactions": Workload(simulate_transactions, TxFaults.KINDS),
}


def main() -> int:
    """Run the histories that the command line asks for; return the exit code."""
    parser = command_line()
    options = parser.parse_args()
    kinds = None if options.kinds is None else tuple(kind for kind in options.kinds.split(",") if kind)
    chosen = [options.workload] if options.workload else sorted(WORKLOADS)
    workloads = [WORKLOADS[name] for name in chosen if set(kinds or ()) <= set(WORKLOADS[name].kinds)]
    if not workloads:
        parser.error(f"no workload knows all of these kinds: {', '.join(kinds or ())}")
    broken: list[int] = []
    begun = time.monotonic()
    for seed in range(options.seed, options.seed + options.seeds):
        verdicts = (workload.simulate(seed, steps=options.steps, flush=options.flush, kinds=kinds) for workload in workloads)
        if print_all(verdicts, whole=options.seeds == 1):
            broken.append(seed)
    if options.seeds > 1:
        print(f"{options.seeds * len(workloads)} histories in {time.monotonic() - begun:.0f} s; broken seeds: {broken or 'none'}")
    return 1 if broken else 0


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Run simulated histories of a cluster.")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of faults in each history (default: %(default)s)")
    parser.add_argument("--flush", choices=("sync", "async"), help="flush mode (default: drawn from the seed)")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="what users do (default: one history of each)")
    known = "; ".join(f"{name}: {', '.join(workload.kinds)}" for name, workload in WORKLOADS.items())
    parser.add_argument("--kinds", help=f"kinds of faults, separated by commas (default: drawn from the seed). {known}")
    return parser


def print_all(verdicts: Iterable[Verdict], *, whole: bool) -> bool:
    """Print verdicts as they come, with their histories or without; return whether one found problems."""
    broken = False
    for verdict in verdicts:
        if whole:
            print("\n".join(verdict.lines))
        print(verdict.summary())
        for problem in verdict.problems[: None if whole else 5]:
            print(f"    {problem[:500]}")
        sys.stdout.flush()
        broken = broken or bool(verdict.problems)
    return broken


if __name__ == "__main__":
    sys.exit(main())
