"""Builds the clients' programs from their registries, once however many processes test, and starts them.

Go's module cache and npm's serve what they have; the rest is fetched with the versions that ``go.mod`` and ``package-lock.json``
pin. A test whose client cannot be had, for want of a tool or of its registry, is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.building import BUILD, run, stamped
from tests.interop.peer import Peer

HERE = Path(__file__).resolve().parent
_UNREACHED = re.compile(r"dial tcp|no such host|i/o timeout|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ENOTCACHED")
"""What Go and npm say when they get no answer from a registry."""


def go(home: Path) -> Peer:
    """Build and start Apache's Go client, without inlining: to compile the standard library takes most of the time."""
    needs("go")
    program = BUILD / "go" / "peer"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    with stamped(BUILD / "go" / "peer.stamp", sorted((HERE / "go").iterdir())) as needed:
        if needed:
            fetch(["go", "mod", "download"], HERE / "go", environment)
            run(
                ["go", "build", "-buildvcs=false", "-gcflags=all=-l", "-o", str(program), "."],
                cwd=HERE / "go",
                environment=environment,
            )
    return Peer([str(program)], home, {**os.environ, "HOME": str(home)})  # where it keeps the progress of broadcasts


def node(home: Path) -> Peer:
    """Install and start Aliyun's Node client."""
    needs("node", "npm")
    place, pins = BUILD / "node", [HERE / "node" / name for name in ("package.json", "package-lock.json")]
    with stamped(place / "installed.stamp", pins) as needed:
        if needed:
            for path in pins:
                shutil.copy(path, place)
            fetch(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"], place)
    return Peer(["node", str(HERE / "node" / "peer.js")], home, {**os.environ, "NODE_PATH": str(place / "node_modules")})


PEERS: dict[str, Callable[[Path], Peer]] = {"go": go, "node": node}
"""A client's short name → what starts its program in a directory of its own."""


def needs(*tools: str) -> None:
    """Skip the test unless each tool is on the path."""
    if absent := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(absent)} on the path")


def fetch(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> None:
    """Run a command that fetches from a registry. Skips the test if the registry cannot be reached."""
    try:
        run(command, cwd=cwd, environment=environment)
    except RuntimeError as exc:
        if _UNREACHED.search(str(exc)):
            pytest.skip(f"{command[0]} does not reach its registry")
        raise
