"""Generator of docs/settings.md from the settings classes."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from halfmoon.broker.settings import CHANGEABLE, BrokerSettings
from halfmoon.client import settings as client
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.settings import Described, describe
from halfmoon.settings.http import HttpSettings
from halfmoon.settings.java_keys import IGNORED, REFUSED
from halfmoon.settings.tls import TlsSettings
from halfmoon.store.settings import StoreSettings
from tools.generated import linked, write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

SERVERS: dict[str, tuple[str, type[Any]]] = {
    "broker": ("The broker", BrokerSettings),
    "store": ("The broker's store", StoreSettings),
    "nameserver": ("The name server", NameServerSettings),
    "tls": ("Encrypted connections, of either", TlsSettings),
    "http": ("The port for monitoring, of either", HttpSettings),
}
CLIENTS: dict[str, type[Any]] = {
    "Every client": client.ClientSettings,
    "Producers": client.ProducerSettings,
    "Transactional producers": client.TransactionSettings,
    "Consumers": client.ConsumerSettings,
    "Push consumers": client.PushSettings,
    "Pull consumers": client.PullSettings,
    "Administration": client.AdminSettings,
}

HEAD = """# Settings

<!-- Written by tools/generate_settings.py: change the settings classes instead. -->

A server reads settings from configuration files (`--config`: TOML, or a RocketMQ `broker.conf`), then from the environment,
then from `--set key=value`; later sources win. Every value is checked at the start: an unknown key or an invalid value is an error
that names it and the nearest valid one.

A key is the name below, the name after its table (`broker.port`), or RocketMQ's own key. In TOML the tables are `[broker]`,
`[store]`, `[nameserver]`, `[tls]` and `[http]`; in the environment a name is `HALFMOON_` and the name in capitals, with or without
the table:

```
--set flush_disk_type=SYNC_FLUSH       --set flushDiskType=SYNC_FLUSH       --set store.flush_disk_type=SYNC_FLUSH
HALFMOON_FLUSH_DISK_TYPE=SYNC_FLUSH    HALFMOON_STORE_FLUSH_DISK_TYPE=SYNC_FLUSH
```
"""

CHANGEABLE_HEAD = """
### Settings of a running broker

`halfmoon config set` (or `mqadmin updateBrokerConfig`) changes these at once; they are saved in `config/broker.properties` in the
data directory and apply over files and flags at every later start, which logs them. To go back, change them again, or remove the
file while the broker is stopped. Any other key is refused by name. A shorter interval takes effect at once, a longer one after the
present interval.

"""

CLIENT_HEAD = """
## Clients

Pass a client's settings to its constructor, by the names below.
"""

JAVA_HEAD = """
## RocketMQ's other keys

In a `broker.conf` these keys are accepted without effect; a line of the log gives the reason. With `--set` they are an error.
"""

REFUSED_HEAD = """
These are refused unless the value is the one that Halfmoon implements, because ignoring them would break a promise.

| key | allowed | why |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for table, (title, cls) in SERVERS.items():
        parts.append(f"\n## {title}: `[{table}]`\n\n{_first_line(cls)}\n\n{_table(describe(cls))}")
    parts.append(CHANGEABLE_HEAD + _changeable())
    parts.append(CLIENT_HEAD)
    known: set[Described] = set()
    for title, cls in CLIENTS.items():
        lines = [each for each in describe(cls) if each not in known]
        known.update(lines)
        if lines:
            parts.append(f"\n### {title}\n\n{_first_line(cls)}\n\n{_table(lines)}")
    parts.append(JAVA_HEAD)
    for reason, pairs in groupby(IGNORED.items(), key=lambda pair: pair[1]):
        parts.append(f"\n**{reason[0].upper()}{reason[1:]}.** {' · '.join(f'`{key}`' for key, _ in pairs)}\n")
    parts.append(REFUSED_HEAD)
    for key, (allowed, reason) in REFUSED.items():
        parts.append(f"| `{key}` | {', '.join(f'`{value}`' for value in sorted(allowed))} | {reason} |\n")
    return "".join(parts)


def _changeable() -> str:
    described = [each for table, names in CHANGEABLE.items() for each in describe(SERVERS[table][1]) if each.name in names]
    names = [f"`{each.java or each.name}`" for each in described]
    return f"{', '.join(names)}.\n"


def _first_line(cls: type[Any]) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _table(lines: list[Described]) -> str:
    rows = ["| name | RocketMQ's key | default | values | why |", "|---|---|---|---|---|"]
    for each in lines:
        java = f"`{each.java}`" if each.java else ""
        default = f"`{each.default}`" if each.default else ""
        allowed = f"{each.kind}, {each.allowed}" if each.allowed else each.kind
        cells = (f"`{each.name}`", java, default, allowed, linked(each.why))
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), sys.argv[1:]))
