"""Consumer groups and their settings, saved as ``config/subscriptionGroup.json``. Knows nothing of connections.

Follows SubscriptionGroupManager (RocketMQ 4.9.8).
"""

from __future__ import annotations

from collections.abc import Collection

from halfmoon.broker.names import SYSTEM_GROUP_PREFIX, check_group, check_topic
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.tables import Tables
from halfmoon.errors import GroupNotFound, SystemBusy
from halfmoon.wire.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable, from_json, to_json
from halfmoon.wire.codes import Perm

PATH = "config/subscriptionGroup.json"
PREDEFINED = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip

OF_TOOLS = frozenset({*PREDEFINED, "DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER", "CID_RMQ_SYS_TRANS"})
"""Groups that pull without a heartbeat. Follows MixAll.isSysConsumerGroupPullMessage (RocketMQ 5.3.3)."""

FORBIDDEN_MAX = 10_000
"""Topics that groups may not read, so that requests cannot fill the memory."""


class Groups:
    """The group table with its version."""

    forbidden_max = FORBIDDEN_MAX

    def __init__(self, settings: BrokerSettings, tables: Tables, now: int) -> None:
        self._settings = settings
        self.epoch = 0
        """Counts changes, so that what was derived from the table can be checked cheaply."""
        saved = tables.load(PATH, lambda data: from_json(SubscriptionGroupTable, data, bounds=None))
        self._table: dict[str, SubscriptionGroupConfig] = dict(saved.subscription_group_table) if saved is not None else {}
        self._forbidden = (
            {group: dict(topics) for group, topics in (saved.forbidden_table or {}).items()} if saved is not None else {}
        )
        """Bits of what a group may not do in a topic."""
        self.version: DataVersion = saved.data_version if saved is not None else DataVersion(timestamp=now)
        self._changed = tables.add(PATH, self._dump)
        self.saved = self._table.keys() - set(PREDEFINED)
        """The groups in the file at the start, without the original's own."""
        self._predefine()

    def _predefine(self) -> None:
        for name in PREDEFINED:
            self._table.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def copy(self, table: SubscriptionGroupTable) -> None:
        """Have a slave show its master's table instead of its own."""
        self._table, self.version = dict(table.subscription_group_table), table.data_version
        self._forbidden = {group: dict(topics) for group, topics in (table.forbidden_table or {}).items()}
        self._predefine()
        self.epoch += 1

    def _dump(self) -> bytes:
        return to_json(self.table())

    def table(self) -> SubscriptionGroupTable:
        """Return all groups with the version."""
        return SubscriptionGroupTable(
            subscription_group_table=self._table, data_version=self.version, forbidden_table=self._forbidden or None
        )

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration, or None."""
        return self._table.get(group)

    def existing(self, group: str, now: int) -> SubscriptionGroupConfig:
        """Return the group's configuration, created where the broker creates groups by itself. Raises GroupNotFound (26)."""
        config = self._table.get(group)
        if config is not None:
            return config
        if not self._settings.auto_create_groups and not group.startswith(SYSTEM_GROUP_PREFIX):
            raise GroupNotFound(f"subscription group [{group}] does not exist, apply first please!")
        check_group(group)
        return self.put(SubscriptionGroupConfig(group_name=group), now)

    def check(self, groups: Collection[str]) -> None:
        """Raise what `put` would raise for one of these groups, were all of them put."""
        for group in groups:
            check_group(group)
        count = len(self._table) + len({group for group in groups if group not in self._table})
        if count > max(len(self._table), self._settings.groups_max):
            raise SystemBusy(
                f"the broker would have {count} groups, more than its bound of {self._settings.groups_max} (groups_max)"
            )

    def put(self, config: SubscriptionGroupConfig, now: int) -> SubscriptionGroupConfig:
        """Create or replace a group. Raises BrokerError for a bad name, SystemBusy when the table is at its bound."""
        check_group(config.group_name)
        if config.group_name not in self._table and len(self._table) >= self._settings.groups_max:
            raise SystemBusy(f"the broker has {len(self._table)} groups, its bound (groups_max)")
        self._table[config.group_name] = config
        self._touch(now)
        return config

    def delete(self, group: str, now: int) -> None:
        """Forget a group; an unknown one is no error, as in the original."""
        if self._table.pop(group, None) is not None:
            self._forbidden.pop(group, None)
            self._touch(now)

    def may_read(self, group: str, topic: str) -> bool:
        """Whether the group may read the topic: it may, unless that was forbidden by command."""
        return not self._forbidden or not self._forbidden.get(group, {}).get(topic, 0) & Perm.READ

    def forbid(self, group: str, topic: str, now: int, *, readable: bool) -> None:
        """Let a group read a topic or not. Raises BrokerError for a bad name, SystemBusy when the table is at its bound.

        Differs: in the original what lets a group read one topic lets it read all, and is forgotten by a restart.
        """
        check_group(group)
        check_topic(topic)
        if self.may_read(group, topic) is readable:
            return
        topics = dict(self._forbidden.get(group, {}))
        if not readable and topic not in topics and sum(map(len, self._forbidden.values())) >= self.forbidden_max:
            raise SystemBusy(f"the broker keeps {self.forbidden_max} topics that groups may not read, its bound")
        topics[topic] = topics.get(topic, 0) & ~Perm.READ | (0 if readable else Perm.READ)
        self._forbidden[group] = {name: int(bits) for name, bits in topics.items() if bits}
        if not self._forbidden[group]:
            del self._forbidden[group]
        self._touch(now)

    def names(self) -> list[str]:
        """Return the names of all groups."""
        return list(self._table)

    def _touch(self, now: int) -> None:
        self.version = self.version.next(now)
        self.epoch += 1
        self._changed()
