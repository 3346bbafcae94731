"""Console as a child process of `halfmoon serve`: started, restarted when it dies, and ended with its parent.

A pipe to its standard input tells it what to serve, and ends when the parent does, however that dies. Nothing of the console runs
here; the listening socket is the parent's, so browsers wait while a child starts.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from halfmoon.cli.console.listening import HOST, check_extra, listen, url_of
from halfmoon.documentation import see
from halfmoon.errors import SettingError
from halfmoon.programs.embedded import Programs, reachable
from halfmoon.settings.tls import TlsMode

log = logging.getLogger("halfmoon.cli")

AGAIN_S = (1, 5, 30)
"""Pauses before a restart; the last one holds for all further ones."""
STEADY_S = 60
"""Lifetime after which the pauses begin anew."""
STOP_S = 3.0


class ConsoleChild:
    """Console on loopback whose child starts with `start`; a context manager. ``url`` is where browsers find it.

    Raises UsageError: the extra is missing; HalfmoonError: the port is taken.
    """

    def __init__(self, port: int, data: Path) -> None:
        check_extra()
        self._data, self._listening = data, listen(HOST, port)
        self.url = url_of(self._listening)
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> ConsoleChild:
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._end_input()
        if self._thread is not None:
            self._thread.join(STOP_S)
            if self._thread.is_alive() and self._child is not None:
                self._child.kill()
                self._thread.join()
        self._listening.close()

    def check(self, programs: Programs) -> None:
        """Raise SettingError if the console could not administer these servers."""
        cluster_of(programs)

    def start(self, programs: Programs) -> None:
        """Start the child over running servers, in the background."""
        self._thread = Thread(target=self._keep_running, args=[programs], name="halfmoon-console", daemon=True)
        self._thread.start()

    def _keep_running(self, programs: Programs) -> None:
        deaths = 0
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                code = self._run(programs)
                how = f"ended with exit code {code}"
            except (OSError, SettingError) as exc:
                code, how = 1, f"does not start: {exc}"
            if self._ending.is_set():
                return
            deaths = 0 if time.monotonic() - began > STEADY_S else deaths
            pause_s, deaths = AGAIN_S[min(deaths, len(AGAIN_S) - 1)], deaths + 1
            log.log(logging.WARNING if code else logging.INFO, "the console %s; it is started again in %d s", how, pause_s)
            self._ending.wait(pause_s)

    def _run(self, programs: Programs) -> int:
        """Run one child to its end; return its exit code, that of a signal as a negative number."""
        facts = {
            "listening": self._listening.fileno(), "data": str(self._data), "level": logging.root.level,
            "cluster": cluster_of(programs),
        }  # fmt: skip
        self._child = child = subprocess.Popen(
            [sys.executable, "-P", "-m", "halfmoon.console"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            pass_fds=[self._listening.fileno()], env=_environment(), process_group=0,  # Ctrl-C is for the parent, which ends it
        )  # fmt: skip
        with child:
            assert child.stdin is not None
            with suppress(OSError, ValueError):
                child.stdin.write(json.dumps(facts).encode() + b"\n")
                child.stdin.flush()
            if self._ending.is_set():
                self._end_input()
            return child.wait()

    def _end_input(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()


def cluster_of(programs: Programs) -> dict[str, Any]:
    """Return the settings with which an administration client reaches servers of this process.

    These are their name server, the first administrator's account if they have accounts, and their certificate if they take TLS
    only.

    Raises SettingError: no account is an administrator.
    """
    names = next(program for program in programs if program.broker is None)
    settings: dict[str, Any] = {"nameserver": f"{reachable(names.host)}:{names.port}", "use_tls": False}
    access = next(program.broker.access for program in programs if program.broker is not None)
    if access is not None:
        found = next((account for account in access.rules.accounts.values() if account.admin), None)
        if found is None:
            raise SettingError(f"the console asks as an administrator, and no account has admin: true ({see('access')})")
        settings |= {"access_key": found.access_key, "secret_key": found.secret.decode()}
        # Another program could register a broker name, get signed requests, and repeat them at another broker.
        settings["signed_addresses"] = ";".join([settings["nameserver"], *(each.address for each in programs if each.broker)])
    certificates = names.server.certificates
    if certificates is not None and certificates.mode is TlsMode.ENFORCING:
        tls = certificates.settings
        settings |= {
            "use_tls": True, "tls_ca": tls.server_cert, "tls_cert": tls.client_cert, "tls_key": tls.client_key,
            "tls_key_password": tls.client_key_password,
        }  # fmt: skip
    return settings


def _environment() -> dict[str, str]:
    """Return this process's variables without those that choose a cluster, an account or certificates: the child has its own."""
    ours = ("HALFMOON_", "NAMESRV_ADDR", "ROCKETMQ_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours) or name == "HALFMOON_NATIVE"}
