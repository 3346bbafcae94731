"""`halfmoon backup`: copies the store of a stopped or running broker, so that a broker can start on the copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import click

from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json
from halfmoon.cli.shared.output import report, show_json
from halfmoon.cli.store.progress import ProgressLine
from halfmoon.errors import StoreError
from halfmoon.programs.backup import back_up
from halfmoon.shown.texts import count_text

app = App()


@app.command()
def backup(
    directory: Annotated[Path, Argument(metavar="DIR", help="The data directory of a broker, which may be running.")],
    target: Annotated[Path, Argument(metavar="TARGET", help="A directory that is new, empty, or an older backup.")],
    verify: Annotated[bool, Option("--verify", help="Read the copy again and compare its checksums.")] = False,
    rate: Annotated[
        int, Option("--rate", metavar="MB", min=0, max=100_000, help="Copy at most MB a second; 0: as fast as it goes.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Copy the store of a broker, which may go on running, so that a broker can start on the copy.

    The copy holds every message up to the moment in which its end was chosen, and progress that fits. Restoring it is starting a
    broker on a copy of it: halfmoon backup TARGET NEWDIR, halfmoon serve --data NEWDIR. An older backup in TARGET is replaced once
    the new one is complete, unless a broker was started on it; files that did not change are not copied again. It must run on the
    broker's machine, or where its directory is mounted.

    Example: halfmoon backup ./data ./backup --verify
    """
    try:
        with _giving_way(), ProgressLine("copied") as progress:
            made = back_up(directory, target, bytes_a_second=rate * 1_000_000, verify=verify, progress=progress.show)
    except (OSError, StoreError) as exc:
        report(StoreError(f"{directory} could not be backed up: {exc}"), as_json=as_json)
        raise click.exceptions.Exit(1) from None
    if as_json:
        show_json({**made._asdict(), "verified": verify})
        return
    say(
        f"{target} has the store, {count_text(made.files, 'file')}: {made.copied_bytes / 1e6:,.1f} MB copied,"
        f" {made.linked_bytes / 1e6:,.1f} MB unchanged, in {made.seconds:.1f} s" + (", checksums compared" if verify else "")
    )
    if made.running:
        say(f"a broker runs on {directory}: the copy ends at physical offset {made.log_end}")


@contextmanager
def _giving_way() -> Iterator[None]:
    """Take the lowest priority, so that a broker does not wait for the processor."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    try:
        yield
    finally:
        with suppress(PermissionError):  # only root may take a higher one again; a command ends here anyway
            os.setpriority(os.PRIO_PROCESS, 0, usual)
