"""Page of the settings of running servers, with defaults and reasons if Halfmoon knows them; operators change one at a time."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.access.audit import SECRET
from halfmoon.console.page import Asked, Change, Done, Facts, Page
from halfmoon.console.pages.cluster import name_servers
from halfmoon.console.render import at
from halfmoon.errors import UsageError
from halfmoon.settings import MASK, TEXT_LENGTH_MAX

FIXED = re.compile(r"broker(Cluster)?Name|brokerId|brokerIP\d|\w*[lL]istenPort|\w*Path\w*|mappedFileSize\w+|rocketmqHome")
"""Settings that Apache's servers read only at their start: later they accept a new value, but it has no effect."""


class SettingsServer(msgspec.Struct, frozen=True):
    """Server of the cluster. ``kind`` is broker or nameserver; so is named the query field with its address."""

    kind: str
    address: str
    name: str

    async def rows(self, admin: AsyncAdmin) -> list[dict[str, Any]]:
        """Return a row for each of its settings, under RocketMQ's name if it has one; values of secrets are masked."""
        read = await (admin.broker_config if self.kind == "broker" else admin.name_server_config)(self.address)
        rows: list[dict[str, Any]] = _known().setting_rows(self.kind, read)
        ours = _known().is_ours(self.kind, read)
        for row in rows:
            is_secret = SECRET.search(row["setting"]) is not None
            can_be_set = row["set"] == "any time" if ours else not FIXED.fullmatch(row["setting"])
            row |= {"can_be_set": can_be_set and not is_secret, "value": MASK if is_secret else row["value"]}
        return rows


async def settings(asked: Asked) -> Facts:
    """Return the settings of the server that the query names, else of the first. ``edit`` is the setting to show a form for."""
    servers, server = await _servers(asked)
    rows = await server.rows(asked.admin)
    name, only = asked.text("setting", ""), asked.choice("only", ("changed", "all"), "all")
    return {
        "servers": servers, "server": server, "ours": any(row["name"] for row in rows), "only": only,
        "edit": next((row for row in rows if row["setting"] == name and row["can_be_set"]), None),
        "settings": asked.sorted([row for row in rows if row["changed"] or only == "all"]),
    }  # fmt: skip


async def change(asked: Asked) -> Done:
    """Change a setting of a running server, which keeps it over a restart; then read it back."""
    _, server = await _servers(asked)
    name, value = asked.text("setting"), asked.text("value", "", length_max=TEXT_LENGTH_MAX)
    before = {row["setting"]: row["value"] for row in await server.rows(asked.admin) if row["can_be_set"]}
    if name not in before:
        raise UsageError(f"{server.name} has no setting {name} that can be set here")
    update = asked.admin.update_broker_config if server.kind == "broker" else asked.admin.update_name_server_config
    await update(server.address, {name: value})
    after = {row["setting"]: row["value"] for row in await server.rows(asked.admin)}
    for key, why in _known().without_effect(server.kind, {name: value}, after).items():
        raise UsageError(f"{key} took no effect: {why}")
    said = f"{server.name}: {name} is {after[name]}, was {before[name]}"
    return Done(said, at("/settings", **{server.kind: server.address}))


async def _servers(asked: Asked) -> tuple[list[SettingsServer], SettingsServer]:
    """Return all servers, and the requested one. Only servers of the cluster are asked, whatever address the query has."""
    table = sorted((await asked.admin.cluster()).broker_addr_table.items())
    servers = [
        SettingsServer("broker", address, f"{name}/{id}")
        for name, data in table
        for id, address in sorted(data.broker_addrs.items())
    ]
    servers += [SettingsServer("nameserver", address, address) for address in name_servers(asked)]
    wanted = {kind: address for kind in ("broker", "nameserver") if (address := asked.text(kind, ""))}
    for server in servers:
        if not wanted or wanted.get(server.kind) == server.address:
            return servers, server
    raise UsageError(f"the cluster has no server {', '.join(wanted.values())}")


def _known() -> Any:
    from halfmoon.programs import described

    return described


PAGES = (
    Page("/settings", "Settings", "settings.html", settings, menu="Cluster"),
    Change("/settings/set", change, ("broker", "nameserver", "setting", "value")),
)
