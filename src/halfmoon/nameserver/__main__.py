"""A name server as a program: ``python -m halfmoon.nameserver --data DIR``. Joins the core to the shell, decides nothing else."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import HalfmoonError
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.settings import Ignored, load
from halfmoon.shell.clock import Clock
from halfmoon.shell.disk import RealDisk
from halfmoon.shell.serve import Address, Server, address_text, run_loop
from halfmoon.store.settings import StoreSettings

LOCK = "namesrv.lock"
log = logging.getLogger("halfmoon.nameserver")


def build(settings: NameServerSettings, data: Path, clock: Clock) -> Server:
    """Return a name server that keeps its files in ``data``, not yet started.

    Raises:
        StoreLocked: another one has the directory. StoreError: a saved file does not read.
    """
    disk = RealDisk(data)
    disk.lock(LOCK)
    return Server(NameServer(settings, disk, now=clock.now()), [(settings.host, settings.port)], clock)


def settings_from(files: list[Path], assignments: list[str]) -> tuple[NameServerSettings, list[Ignored]]:
    """Return the settings of configuration files, the environment and ``key=value`` texts. Raises SettingError, OSError."""
    texts = [(str(path), path.read_text()) for path in files]
    others = {"broker": BrokerSettings, "store": StoreSettings}
    loaded = load({"nameserver": NameServerSettings}, files=texts, environment=os.environ, assignments=assignments, others=others)
    return loaded.of(NameServerSettings), loaded.ignored


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return the exit code: 0, 1 (cannot start) or 2 (a wrong argument or setting)."""
    parser = argparse.ArgumentParser(prog="halfmoon nameserver", description="A RocketMQ name server.")
    parser.add_argument("--data", type=Path, default=Path("~/.local/share/halfmoon/namesrv"), help="directory of its files")
    parser.add_argument("--config", type=Path, action="append", default=[], help="TOML or RocketMQ properties file")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="KEY=VALUE", help="one setting")
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", help="port to listen on")
    given = parser.parse_args(arguments)
    direct = [f"{name}={value}" for name in ("host", "port") if (value := getattr(given, name)) is not None]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        settings, ignored = settings_from(given.config, [*given.assignments, *direct])
    except (HalfmoonError, OSError) as exc:
        print(f"halfmoon nameserver: {exc}", file=sys.stderr)
        return 2
    for each in ignored:
        log.info("setting ignored: key=%s source=%s reason=%s", *each)
    try:
        run_loop(build(settings, given.data.expanduser(), Clock()).run(_say_ready))
    except (HalfmoonError, OSError) as exc:
        print(f"halfmoon nameserver: {exc}", file=sys.stderr)
        return 1
    return 0


def _say_ready(bound: list[Address]) -> None:
    print(f"name server ready at {', '.join(map(address_text, bound))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
