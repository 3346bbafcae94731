"""Settings of all parts of a server, from files, environment and assignments. Opens only those files."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from halfmoon.broker.settings import CHANGEABLE as OF_BROKER
from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import SettingError
from halfmoon.nameserver.settings import CHANGEABLE as OF_NAME_SERVER
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.runtime.files.secrets import check_private
from halfmoon.settings import Ignored, Sections, check, forms, load
from halfmoon.settings.http import HttpSettings
from halfmoon.settings.tls import TlsSettings
from halfmoon.store.settings import StoreSettings

BROKER: Sections = {"broker": BrokerSettings, "store": StoreSettings, "tls": TlsSettings, "http": HttpSettings}
NAME_SERVER: Sections = {"nameserver": NameServerSettings, "tls": TlsSettings, "http": HttpSettings}
CHANGEABLE = {**OF_BROKER, "nameserver": OF_NAME_SERVER}
"""Settings that a running server can be told to change, by section."""
CONFIG_BYTES_MAX = 1024 * 1024
"""Longest configuration file; RocketMQ's own with every key is under 20 KiB."""


class ServerSettings(NamedTuple):
    """Checked settings of a name server, a broker and its store. ``host`` is where servers listen."""

    host: str = "127.0.0.1"
    nameserver: NameServerSettings = NameServerSettings()
    broker: BrokerSettings = BrokerSettings()
    store: StoreSettings = StoreSettings()
    tls: TlsSettings = TlsSettings()
    http: HttpSettings = HttpSettings()
    ignored: tuple[Ignored, ...] = ()


def configuration(
    sections: Sections,
    *,
    host: str | None = None,
    files: Iterable[str | Path] = (),
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
) -> ServerSettings:
    """Return the settings of the programs whose sections are given; what comes later wins: files, environment, assignments.

    ``sections`` are `BROKER`, `NAME_SERVER` or both joined. ``host`` None takes the name server's setting. A broker tells clients
    the host that it listens on, unless its setting ``address`` (brokerIP1) says otherwise; listening on every address, it tells
    the one that leads out.

    Raises:
        SettingError: an unknown key or a value that does not fit, named with the nearest right one; a file that cannot be read,
            or that has secrets and is open to other users.
    """
    everything = {**NAME_SERVER, **BROKER}
    loaded = load(
        sections,
        files=[(str(path), _text(Path(path))) for path in files],
        environment=environment,
        assignments=assignments,
        java_sections=[*BROKER] if "broker" in sections else None,
        others={name: cls for name, cls in everything.items() if name not in sections},
    )
    for name in loaded.secret_files:
        check_private(Path(name), "the secrets in it", environment or {})
    values: dict[str, Any] = {name: loaded.values.get(name, cls()) for name, cls in everything.items()}
    for settings in values.values():
        check(settings)
    name_server: NameServerSettings = values["nameserver"]
    broker: BrokerSettings = values["broker"]
    if {*BROKER, *NAME_SERVER} <= {*sections} and broker.port == name_server.port != 0:
        raise SettingError(f"nameserver.port and broker.port are both {broker.port}: the broker must listen on another port")
    where = host if host is not None else name_server.host
    if not forms.HOST.fits(where):
        raise SettingError(f"--host {where!r:.200}: must be {forms.HOST.what}")
    if broker.address == BrokerSettings().address:
        values["broker"] = replace(broker, address=outward_address(where))
    return ServerSettings(where, ignored=tuple(loaded.ignored), **values)


def outward_address(host: str) -> str:
    """Return the address that others may use for a listener: its own, or for a wildcard that of the default route.

    Raises SettingError for the name of a host that has no address.
    """
    if host not in ("", "0.0.0.0", "::", "[::]"):
        return host.strip("[]") if forms.is_ip(host) else _resolved(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: nothing is sent, the kernel only chooses the way
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _resolved(host: str) -> str:
    """Return the address of a host; IPv4 where it has one, as every client can use that."""
    try:
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as exc:
        raise SettingError(f"--host {host}: it has no address: {exc}") from None
    return min(addresses, key=lambda address: ":" in address)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise SettingError(f"{path}: a configuration file has at most {CONFIG_BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingError(f"{path}: cannot be read: {exc}") from None
