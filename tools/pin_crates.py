"""Pins every crate that halfmoon-native is built of, also those that others need: by version and checksum, in `native/crates.txt`.

Cargo's own lock file says where each crate came from, and so is not kept. Before a build this has Cargo choose the versions of the
list, and compares the checksums of what it found: ``python tools/pin_crates.py``. With ``--write`` it writes the list anew.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "native"
LOCK, LIST, MANIFEST = NATIVE / "Cargo.lock", NATIVE / "crates.txt", NATIVE / "Cargo.toml"

Crates = dict[tuple[str, str], str]
"""Checksums (SHA-256, in hex) by name and version."""


def locked(text: str) -> Crates:
    """Return the crates of a lock file, but for our own."""
    packages = tomllib.loads(text).get("package", [])
    return {(each["name"], each["version"]): each.get("checksum", "") for each in packages if "source" in each}


def listed(text: str) -> Crates:
    """Return the crates of our list: a line each, name, version and checksum."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {(name, version): checksum for name, version, checksum in rows}


def differences(found: Crates, pinned: Crates) -> list[str]:
    """Return in words what a build would use that the list does not have, or has with another checksum."""
    said = []
    for (name, version), checksum in sorted(found.items()):
        known = pinned.get((name, version))
        if known is None:
            said.append(f"{name} {version} is not in the list")
        elif known != checksum or not checksum:
            said.append(f"{name} {version} has the checksum {checksum or 'none'}, the list {known}")
    return said


def moves(found: Crates, pinned: Crates) -> list[tuple[str, str]]:
    """Return which crates are to be of another version: as Cargo names them, and the version."""
    versions: dict[str, list[str]] = {}
    for name, version in pinned:
        versions.setdefault(name, []).append(version)
    return [
        (f"{name}@{version}", versions[name][0])
        for name, version in found
        if (name, version) not in pinned and len(versions.get(name, ())) == 1
    ]


def _cargo(*arguments: str) -> None:
    subprocess.run(["cargo", *arguments, "--quiet", "--manifest-path", str(MANIFEST)], check=True)


def main() -> int:
    """Pin, and return the exit code: 1 where a build would use something else than the list has."""
    if not LOCK.exists():
        _cargo("generate-lockfile")
    if "--write" in sys.argv:
        lines = [f"{name} {version} {checksum}" for (name, version), checksum in sorted(locked(LOCK.read_text()).items())]
        head = "# Crates of halfmoon-native: name, version, SHA-256. Written by tools/pin_crates.py --write."
        LIST.write_text("\n".join([head, *lines, ""]))
        return 0
    pinned = listed(LIST.read_text())
    for crate, version in moves(locked(LOCK.read_text()), pinned):
        _cargo("update", crate, "--precise", version)
    for text in (said := differences(locked(LOCK.read_text()), pinned)):
        print(f"native/crates.txt: {text}", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
