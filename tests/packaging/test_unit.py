"""The systemd units: they start commands of ours, systemd understands them, and they leave a server little to do harm with."""

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
from tools.generate_units import UNITS, path_of, unit

COMMANDS = {"halfmoon": "serve", **{path_of(command).stem: command for command in UNITS}}
"""The command that each unit starts."""
EXPOSURE_MAX = 20
"""Tenths, of 100, as `systemd-analyze security` counts what a service may do; 14 by version 252."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


every_unit = pytest.mark.parametrize("name", COMMANDS)


def text_of(name: str) -> str:
    """Return a unit."""
    return (ROOT / "packaging" / f"{name}.service").read_text()


def setting(name: str, key: str) -> str:
    """Return a setting of a unit that stands there once."""
    (value,) = re.findall(rf"^{key}=(.*)$", text_of(name), re.M)
    return str(value)


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `systemd-analyze`."""
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


@every_unit
def test_it_starts_a_server_that_listens_on_this_machine_alone(name: str) -> None:
    program, command, *options = shlex.split(setting(name, "ExecStart"))
    assert (command, options.pop()) == (COMMANDS[name], f"${command.upper()}_OPTIONS")

    values = read_options(OPTIONS[command], options)

    assert values is not None
    assert (Path(program).name, values["data"]) == ("halfmoon", "${STATE_DIRECTORY}")
    assert settings_from(command, values, {}).host == "127.0.0.1"


@every_unit
def test_it_waits_for_what_a_server_tells_and_starts_it_again_where_that_may_help(name: str) -> None:
    assert setting(name, "Type") == "notify"
    assert setting(name, "Restart") == "on-failure"
    assert setting(name, "RestartPreventExitStatus") == "2"
    assert int(setting(name, "TimeoutStopSec")) * 1000 > 2 * STOP_MS, "name server and broker stop one after the other"


@pytest.mark.parametrize("command", UNITS)
def test_the_units_of_one_server_are_written_from_that_of_both_with_its_sandbox(command: str) -> None:
    own = path_of(command)
    assert own.read_text() == unit(command), "stale: run make docs"

    sandbox = text_of("halfmoon").partition("CapabilityBoundingSet=")[2]
    assert text_of(own.stem).endswith(f"CapabilityBoundingSet={sandbox}")


def test_a_broker_alone_goes_on_with_the_store_of_the_unit_of_both_and_never_runs_beside_it() -> None:
    directories = {name: setting(name, "StateDirectory") for name in COMMANDS}
    assert directories["halfmoon-broker"] == directories["halfmoon"] != directories["halfmoon-nameserver"]
    assert setting("halfmoon-broker", "Conflicts") == "halfmoon.service"


@needs_systemd
@every_unit
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path, name: str) -> None:
    unit = tmp_path / f"{name}.service"
    unit.write_text(text_of(name).replace("/opt/halfmoon/bin/halfmoon", "/bin/true"))  # it must exist here

    said = analyze("verify", "--man=no", unit)

    assert [line for line in said.stderr.splitlines() if "halfmoon" in line] == []


@needs_systemd
@every_unit
def test_a_server_may_do_little_else(name: str) -> None:
    said = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", ROOT / "packaging" / f"{name}.service")

    assert said.returncode == 0, said.stdout + said.stderr
