"""Builds the clients' programs from their registries, once however many processes test, and starts them.

The caches of Go, npm, Maven and Cargo serve what they have; the rest is fetched with the versions that ``go.mod``,
``package-lock.json``, ``pom.xml`` and ``Cargo.toml`` pin. A test whose client cannot be had, for want of a tool or of its
registry, is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.building import BUILD, run, stamped
from tests.interop.jars import JAVA_FLAGS, SHORT_RUN
from tests.interop.peer import Peer

HERE = Path(__file__).resolve().parent
_UNREACHED = re.compile(
    r"dial tcp|no such host|i/o timeout|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ENOTCACHED"
    r"|Could not transfer artifact|No plugin found for prefix|ould(?: not|n't) resolve host|Failed to connect|Could not connect"
)
"""What Go, npm, Maven and Cargo say when they get no answer from a registry."""


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


def spring(home: Path) -> Peer:
    """Compile and start applications of Spring Boot with Apache's starter."""
    return _java("spring", home)


def ons(home: Path) -> Peer:
    """Compile and start Aliyun's Java client."""
    return _java("ons", home)


def _java(name: str, home: Path) -> Peer:
    """Compile a program with what our other Java programs share, and start it with the jars of its ``pom.xml``."""
    needs("java", "javac", "mvn")
    place, pom = BUILD / name, HERE / name / "pom.xml"
    shared = [HERE.parent / "java" / file for file in ("Orders.java", "Load.java", "Kept.java")]
    sources = [*shared, *sorted((HERE / name).glob("*.java"))]
    with stamped(place / "jars.stamp", [pom]) as needed:
        if needed:
            shutil.rmtree(place / "jars", ignore_errors=True)
            fetch(["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={place / 'jars'}"], place)
    with stamped(place / "classes.stamp", sources) as needed:
        if needed:
            shutil.rmtree(place / "classes", ignore_errors=True)
            (place / "classes").mkdir()
            run(["javac", "-nowarn", "-Xlint:none", "-d", str(place / "classes"), "-cp", f"{place / 'jars'}/*", *map(str, sources)])
    home.mkdir(parents=True, exist_ok=True)
    command = ["java", "-Xmx256m", f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}", *JAVA_FLAGS, *SHORT_RUN]
    return Peer([*command, "-cp", f"{place / 'classes'}:{place / 'jars'}/*", "Peer"], home)


def rust(home: Path) -> Peer:
    """Start the Rust client, which ``make rust-client`` builds: its 375 crates take minutes of both processors."""
    place, sources = BUILD / "rust", [HERE / "rust" / "Cargo.toml", *sorted((HERE / "rust" / "src").iterdir())]
    with stamped(place / "peer.stamp", sources) as needed:
        if needed:
            needs("cargo")
            if not os.environ.get("INTEROP_RUST"):
                pytest.skip("not built: make rust-client does it")
            shutil.copytree(HERE / "rust", place, dirs_exist_ok=True)  # for cargo writes beside its Cargo.toml
            fetch(["cargo", "fetch"], place)
            run(["cargo", "build", "--offline"], cwd=place)
    return Peer([str(place / "target" / "debug" / "peer")], home)


PEERS: dict[str, Callable[[Path], Peer]] = {"go": go, "node": node, "ons": ons, "rust": rust, "spring": spring}
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
