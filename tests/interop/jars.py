"""The published jars of Apache RocketMQ and our small Java program compiled against them, kept under ``build/interop``.

Fetched with Maven by `pom.xml`, once a version. Needs ``java``, ``javac`` and ``mvn`` on the path (`missing` says which is absent).
Never starts a broker or a client.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.interop.building import BUILD, run, stamped

HERE = Path(__file__).resolve().parent

JAVA_FLAGS = [
    *("--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens", "java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/java.util=ALL-UNNAMED"),
    "-Dio.netty.tryReflectionSetAccessible=true",
]
"""What Java 17 needs for programs written for Java 8."""

SHORT_RUN = [
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
    "-Dtls.server.mode=disabled",
]
"""What makes a test's JVM start fast, at the price of its speed later: never for a measurement. Apache's servers else make
themselves a key for TLS at every start: more than half of the processor time that a start takes."""


def missing() -> str | None:
    """Return why Apache's artefacts cannot be used here, or None when they can."""
    absent = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    return f"needs {', '.join(absent)} on the path (Java 17 and Maven)" if absent else None


def jars(version: str) -> Path:
    """Return the directory with all jars of a version, fetched when it is not there. Raises RuntimeError with Maven's words."""
    target = BUILD / version / "jars"
    with stamped(BUILD / version / "jars.stamp", [HERE / "pom.xml"]) as needed:
        if needed:
            shutil.rmtree(target, ignore_errors=True)
            command = ["mvn", "-B", "-q", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
            command += [f"-Drmq.version={version}", f"-DoutputDirectory={target}"]
            if subprocess.run([*command, "-o"], capture_output=True, stdin=subprocess.DEVNULL).returncode:
                run(command)
    return target


def classes(version: str) -> Path:
    """Return the directory with our Java program compiled against a version."""
    target = BUILD / version / "classes"
    library, sources = jars(version), sorted((HERE / "java").glob("*.java"))
    with stamped(BUILD / version / "classes.stamp", sources) as needed:
        if needed:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            run(
                [
                    "javac",
                    "-nowarn",
                    "-Xlint:none",
                    "-encoding",
                    "UTF-8",
                    "-d",
                    str(target),
                    "-cp",
                    f"{library}/*",
                    *map(str, sources),
                ]
            )
    return target
