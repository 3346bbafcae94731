"""The systemd unit: what it starts is a command of ours, systemd understands it, and it leaves a server little to do harm with."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from halfmoon.cli.servers import OPTIONS, read_options, settings_from
from halfmoon.programs.embedded import STOP_MS
from tests.packaging.conftest import ROOT

UNIT = ROOT / "packaging" / "halfmoon.service"
EXPOSURE_MAX = 20
"""Tenths, of 100, as `systemd-analyze security` counts what a service may do; 14 by version 252."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def setting(name: str) -> str:
    """Return a setting of the unit that stands there once."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.M)
    return str(value)


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `systemd-analyze`."""
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


def test_it_starts_a_server_that_listens_on_this_machine_alone() -> None:
    program, name, *options = shlex.split(setting("ExecStart"))
    assert options.pop() == "$SERVE_OPTIONS"

    values = read_options(OPTIONS[name], options)

    assert values is not None
    assert (Path(program).name, values["data"]) == ("halfmoon", "${STATE_DIRECTORY}")
    assert settings_from(name, values, {}).host == "127.0.0.1"


def test_it_waits_for_what_a_server_tells_and_starts_it_again_where_that_may_help() -> None:
    assert setting("Type") == "notify"
    assert setting("Restart") == "on-failure"
    assert setting("RestartPreventExitStatus") == "2"
    assert int(setting("TimeoutStopSec")) * 1000 > 2 * STOP_MS, "name server and broker stop one after the other"


@needs_systemd
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    unit = tmp_path / "halfmoon.service"
    unit.write_text(UNIT.read_text().replace("/opt/halfmoon/bin/halfmoon", "/bin/true"))  # it must exist here

    said = analyze("verify", "--man=no", unit)

    assert [line for line in said.stderr.splitlines() if "halfmoon" in line] == []


@needs_systemd
def test_a_server_may_do_little_else() -> None:
    said = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", UNIT)

    assert said.returncode == 0, said.stdout + said.stderr
