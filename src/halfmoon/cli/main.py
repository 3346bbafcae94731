"""Entry point of ``halfmoon``. Loads the modules of commands only when one runs.

`serve`, `nameserver` and `broker` start without loading Click, so that they are ready sooner.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from halfmoon.cli.shared.lines import take_all_characters

SERVERS = frozenset(("serve", "nameserver", "broker"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 done, 1 refused or found something, 2 a wrong argument or setting."""
    take_all_characters()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:
        return 130  # as shells report a process that SIGINT ended


def _run(given: list[str]) -> int:
    if given and given[0] in SERVERS:
        from halfmoon.cli.servers import run_server

        code = run_server(given[0], given[1:])
        if code is not None:
            return code
    from halfmoon.cli.shared.command_group import run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
