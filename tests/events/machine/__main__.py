"""Long runs: ``python -m tests.events.machine --provider "session on sqlite3" --examples 2000``; no provider: the list.

``--collect`` goes on after a failure and leaves out programs that contain one that was found. ``--program`` plays one program.
"""

from __future__ import annotations

import argparse
import time
from math import inf

import pytest

from tests.events.machine.application import Application
from tests.events.machine.faults import only_checks_decide
from tests.events.machine.providers import PROVIDERS, running
from tests.events.machine.searching import search


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", choices=sorted(PROVIDERS))
    parser.add_argument("--examples", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=inf)
    parser.add_argument("--patience-s", type=float)
    parser.add_argument("--checks-s", type=float)
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--verbs", action="store_true", help="show how often each verb ran, and how often it raised")
    parser.add_argument("--threads", action="store_true", help="let the publisher's threads decide, as with a broker")
    parser.add_argument("--only-checks", action="store_true", help="lose all decisions: what the token row alone tells")
    parser.add_argument("--program", nargs="+")
    options = parser.parse_args()
    if options.provider is None:
        print("\n".join(PROVIDERS))
        return
    with pytest.MonkeyPatch.context() as patch, running(options.provider, threads=options.threads) as app:
        if options.only_checks:
            only_checks_decide(patch)
            app.patience_s = 0
        app.patience_s = app.patience_s if options.patience_s is None else options.patience_s
        app.checks_s = app.checks_s if options.checks_s is None else options.checks_s
        if options.program:
            app.play(options.program)
            print("the promises hold")
        else:
            _search(app, options)


def _search(app: Application, options: argparse.Namespace) -> None:
    found: list[tuple[str, ...]] = []
    examples, began = 0, time.monotonic()
    while examples < options.examples and time.monotonic() - began < options.seconds:
        left_s = options.seconds - (time.monotonic() - began)
        result = search(app, examples=options.examples - examples, seconds=left_s, known=found)
        examples += max(1, result.examples)
        if result.failure is None:
            break
        found.append(result.program)
        print(f"{len(found)}. {result.failure}", flush=True)
        if not options.collect:
            break
    print(f"{options.provider}: {examples} programs in {time.monotonic() - began:.0f} s, {len(found)} broken")
    shown = app.counts if options.verbs else {name: n for name, n in app.counts.items() if not name.startswith(("ran ", "raised "))}
    print("\n".join(f"{name}: {count}" for name, count in sorted(shown.items())))


if __name__ == "__main__":
    main()
