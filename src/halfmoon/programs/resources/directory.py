"""The data directory of a server, and the files of accounts, which may be elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom

from halfmoon.broker.access.files import RuleFiles
from halfmoon.documentation import see
from halfmoon.errors import SettingError
from halfmoon.programs.configuration import ServerSettings
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.permissions import PERMISSIONS, report_readable
from halfmoon.store.settings import StoreSettings

RULES = "conf/plain_acl.yml"
"""Where RocketMQ keeps its accounts, in the directory that ``ROCKETMQ_HOME`` names."""


def random_source() -> Random:
    """Return a source of numbers that nobody can guess from earlier processes."""
    return Random(SystemRandom().getrandbits(128))


def disk_of(data: Path, settings: StoreSettings, *, report: bool = True) -> RealDisk:
    """Return a data directory, made if it is missing; ``report``: log which of its files others may read."""
    disk = RealDisk(data, PERMISSIONS[settings.readable_by])
    if report:
        report_readable(data, disk.permissions)
    return disk


def rule_files(settings: ServerSettings) -> RuleFiles | None:
    """Return where a broker's accounts are, as its settings or RocketMQ's own variable say; None: in its data directory."""
    broker = settings.broker
    home = Path(os.environ.get("ROCKETMQ_HOME") or "/nonexistent")
    if not broker.acl_enable or not (broker.acl_file or (home / RULES).exists()):
        return None
    path = Path(broker.acl_file).expanduser().absolute() if broker.acl_file else home / RULES
    if not path.exists():  # a disk would make the directory
        raise SettingError(f"{path}: there is no such file of accounts: see {see('access')}")
    root, main = (path.parent, path.name) if broker.acl_file else (home, RULES)
    return RuleFiles(RealDisk(root, PERMISSIONS[settings.store.readable_by]), str(root), main)


def as_it_is(settings: StoreSettings, data: Path) -> StoreSettings:
    """Return the settings with the directory, and with the machine's memory where it was not set."""
    settings = replace(settings, data=str(data))
    if settings.memory_bytes:
        return settings
    try:
        return replace(settings, memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return settings
