"""A database server that a test run starts for itself: what PostgreSQL and MariaDB have in common. Needs no pytest."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from tests.interop.process import free_port

START_S = 30


def owner(*names: str) -> pwd.struct_passwd | None:
    """Return the first of these users that is there."""
    known = {one.pw_name: one for one in pwd.getpwall()}
    return next((known[name] for name in names if name in known), None)


def as_user(user: pwd.struct_passwd | None) -> list[str]:
    """Return what, before a command, runs it as a user; nothing for None."""
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"] if user is not None else []


def dying_with_us(how: signal.Signals) -> list[str]:
    """Return what, before a command, has a signal end it when this process ends; nothing where `setpriv` is not installed."""
    return [last, "--pdeathsig", how.name.removeprefix("SIG"), "--"] if (last := shutil.which("setpriv")) else []


class Server(ABC):
    """A server of its own in a temporary directory, on a free port of 127.0.0.1, until `close`. Takes a second or two to start.

    Root starts it as a user without rights, by `setpriv`: where `subprocess` changes the user it copies this process, however large
    that has grown. Where `setpriv` is installed the server dies with this process.
    """

    name: ClassVar[str]
    users: ClassVar[tuple[str, ...]] = ("nobody",)
    """Of whom root starts it as the first that is there."""
    crash: ClassVar[signal.Signals] = signal.SIGKILL
    """What ends it at once, its connections broken."""
    ending: ClassVar[signal.Signals] = signal.SIGTERM
    not_yet: ClassVar[type[Exception]]
    """What the driver raises while it does not answer."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"halfmoon-{self.name.lower()}-"))
        self.password = secrets.token_hex(16)
        self._owner: pwd.struct_passwd | None = None
        if os.getuid() == 0:
            self._owner = owner(*self.users)
            assert self._owner is not None, f"{self.name} does not run as root, and there is no user {' or '.join(self.users)}"
            self._give(self.directory)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def url(self, database: str) -> str:
        """Return the address of a database, as SQLAlchemy writes it."""

    @abstractmethod
    def create(self) -> str:
        """Make an empty database and return its address."""

    @abstractmethod
    def drop(self, url: str) -> None:
        """Remove a database; who is still connected is cut off."""

    @abstractmethod
    def connect(self) -> Any:
        """Open a connection that commits each statement."""

    @abstractmethod
    def _make(self) -> None:
        """Make the files of a new server, with a user halfmoon and its password."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return what runs the server on its port."""

    def start(self) -> None:
        """Start it, again after `kill` or `stop`: on the same port, if that is still free."""
        for _ in range(5):
            self.port = self.port or free_port()
            self._process = self._run()
            if self._answers():
                return
            self.port = 0
        raise RuntimeError(f"{self.name} did not start: {self._log()}")

    def kill(self) -> None:
        """Kill it as a crash would: connections break, what was committed stays."""
        self.stop(self.crash)

    def stop(self, how: signal.Signals | None = None) -> None:
        """Stop it, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(how or self.ending)
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop it and remove its files."""
        self.stop(self.crash)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _give(self, path: Path) -> None:
        """Have a file or directory belong to the user that the server runs as."""
        if self._owner is not None:
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid)

    def _tool(self, command: list[str], said: str | None = None) -> None:
        """Run a program of the server's to its end, as its user; ``said`` is what it reads."""
        command = [*as_user(self._owner), *command]
        made = subprocess.run(command, input=said, capture_output=True, text=True, cwd=self.directory, check=False)
        if made.returncode:
            raise RuntimeError(f"{self.name} made no database: {made.stderr.strip()[-2_000:]}")

    def _run(self) -> subprocess.Popen[bytes]:
        command = [*as_user(self._owner), *dying_with_us(self.crash), *self._command()]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory)

    def _answers(self) -> bool:
        assert self._process is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self.connect().close()
                return True
            except self.not_yet:
                time.sleep(0.02)
        self.stop(self.crash)
        return False

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2_000:]
