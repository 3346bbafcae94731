"""The settings of running servers, each with its default and reason where Halfmoon knows them; operators change one at a time."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.page import Asked, Change, Done, Facts, Page
from halfmoon.console.pages.brokers import name_servers
from halfmoon.console.render import at
from halfmoon.errors import UsageError
from halfmoon.settings import MASK, TEXT_LENGTH_MAX

SECRET = re.compile("password|secret|credential|token|authenticationuser", re.IGNORECASE)
"""What is masked: of Halfmoon's servers nothing is left to mask, of Apache's some have passwords among their settings."""


class Server(msgspec.Struct, frozen=True):
    """A server of the cluster. ``kind`` is broker or nameserver, and the name of the field that says its address."""

    kind: str
    address: str
    name: str

    async def read(self, admin: AsyncAdmin) -> dict[str, str]:
        """Return its settings, as text by RocketMQ's names where it has one."""
        return await (admin.broker_config if self.kind == "broker" else admin.name_server_config)(self.address)


async def settings(asked: Asked) -> Facts:
    """Return the settings of the server that the query names, else of the first. ``edit`` is the one that a form is shown for."""
    servers, server = await _servers(asked)
    rows = _rows(server, await server.read(asked.admin))
    name, only = asked.text("setting", ""), asked.choice("only", ("changed", "all"), "all")
    return {
        "servers": servers, "server": server, "ours": any(row["name"] for row in rows), "only": only,
        "edit": next((row for row in rows if row["setting"] == name and row["can_be_set"]), None),
        "settings": [row for row in rows if row["changed"] or only == "all"],
    }  # fmt: skip


async def change(asked: Asked) -> Done:
    """Change a setting of a running server, which keeps it over a restart; then read it back."""
    _, server = await _servers(asked)
    name, value = asked.text("setting"), asked.text("value", "", length_max=TEXT_LENGTH_MAX)
    before = await server.read(asked.admin)
    if not any(row["setting"] == name and row["can_be_set"] for row in _rows(server, before)):
        raise UsageError(f"{server.name} has no setting {name} that can be set here")
    if not value.isprintable():
        raise UsageError("a value has characters of one line only")
    update = asked.admin.update_broker_config if server.kind == "broker" else asked.admin.update_name_server_config
    await update(server.address, {name: value})
    after = await server.read(asked.admin)
    for key, why in _known().without_effect(server.kind, {name: value}, after).items():
        raise UsageError(f"{key} took no effect: {why}")
    said = f"{server.name}: {name} is {after[name]}, was {before[name]}"
    return Done(said, at("/settings", **{server.kind: server.address}))


async def _servers(asked: Asked) -> tuple[list[Server], Server]:
    """Return all servers, and the one that is asked for. Only servers of the cluster are asked, whatever address somebody types."""
    table = (await asked.admin.cluster()).broker_addr_table
    servers = [
        Server("broker", address, f"{name}/{broker_id}")
        for name, data in sorted(table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ] + [Server("nameserver", address, address) for address in name_servers(asked)]
    wanted = {kind: address for kind in ("broker", "nameserver") if (address := asked.text(kind, ""))}
    for server in servers:
        if not wanted or wanted.get(server.kind) == server.address:
            return servers, server
    raise UsageError(f"the cluster has no server {', '.join(wanted.values())}")


def _rows(server: Server, read: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each setting, of secrets without the value. Which of Apache's can be set is not known: all may be tried."""
    rows: list[dict[str, Any]] = _known().setting_rows(server.kind, read)
    ours = _known().is_ours(server.kind, read)
    for row in rows:
        is_secret = SECRET.search(row["setting"]) is not None
        row["can_be_set"] = not is_secret and (row["set"] == "any time" or not ours)
        row["value"] = MASK if is_secret else row["value"]
    return rows


def _known() -> Any:
    from halfmoon.programs import described

    return described


PAGES = (
    Page("/settings", "Settings", "settings.html", settings, menu=True),
    Change("/settings/set", change, ("broker", "nameserver", "setting", "value")),
)
