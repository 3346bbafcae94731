"""Long runs: ``python -m tests.events.machine --provider "session on sqlite3" --examples 2000``; no provider: the list.

``--program`` plays one program.
"""

from __future__ import annotations

import argparse

from tests.events.machine.providers import PROVIDERS, running
from tests.events.machine.searching import search


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", choices=sorted(PROVIDERS))
    parser.add_argument("--examples", type=int, default=2_000)
    parser.add_argument("--threads", action="store_true", help="let the publisher's threads decide, as with a broker")
    parser.add_argument("--program", nargs="+")
    options = parser.parse_args()
    if options.provider is None:
        print("\n".join(PROVIDERS))
        return
    with running(options.provider, threads=options.threads) as app:
        if options.program:
            app.play(options.program)
            print("the promises hold")
            return
        print(f"{options.provider}: {(found := search(app, examples=options.examples))}, {found.failure or 'the promises hold'}")
        print("\n".join(f"{name}: {count}" for name, count in sorted(app.counts.items())))


if __name__ == "__main__":
    main()
