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
from collections.abc import Iterable

from simulation.batches.batches import Batches
from simulation.batches.weeks import Weeks
from simulation.delays import Delays
from simulation.history import Workload, simulate
from simulation.messages import Messages
from simulation.order import Order
from simulation.polls import Polls
from simulation.redelivery import Redelivery
from simulation.topics.deleted import Deleted
from simulation.topics.waiting import Waiting
from simulation.transactions.days import Days
from simulation.transactions.transactions import Transactions
from simulation.verdict import Verdict

WORKLOADS: dict[str, type[Workload]] = {
    workload.NAME: workload
    for workload in (
        Batches, Days, Delays, Deleted, Messages, Order, Polls, Redelivery, Transactions, Waiting, Weeks
    )
}  # fmt: skip


def main() -> int:
    """Run the histories that the command line asks for; return the exit code."""
    parser = command_line()
    options = parser.parse_args()
    kinds = None if options.kinds is None else tuple(kind for kind in options.kinds.split(",") if kind)
    chosen = [options.workload] if options.workload else sorted(WORKLOADS)
    workloads = [WORKLOADS[name] for name in chosen if set(kinds or ()) <= set(WORKLOADS[name].known())]
    if not workloads:
        parser.error(f"no workload knows all of these kinds: {', '.join(kinds or ())}")
    broken: list[int] = []
    begun = time.monotonic()
    for seed in range(options.seed, options.seed + options.seeds):
        verdicts = (simulate(each, seed, steps=options.steps, flush=options.flush, kinds=kinds) for each in workloads)
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
    parser.add_argument("--steps", type=int, help="number of faults in each history (default: the workload's)")
    parser.add_argument("--flush", choices=("sync", "async"), help="flush mode (default: drawn from the seed)")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="work that users do (default: one history of each)")
    known = "; ".join(f"{name}: {', '.join(workload.known())}" for name, workload in WORKLOADS.items())
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
