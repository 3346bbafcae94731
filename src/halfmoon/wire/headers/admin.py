"""Requests about a broker itself: settings, figures. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.needs import ADMIN, LOOK, account
from halfmoon.wire.table import Header, request


@request(25, "UPDATE_BROKER_CONFIG", changes=True, needs=ADMIN)
class UpdateBrokerConfig(Header):
    """Change settings of a broker: body is properties text."""


class GetBrokerConfigReply(Header):
    """Version of the settings, as the JSON text of a `DataVersion`."""

    version: str


@request(26, "GET_BROKER_CONFIG", reply=GetBrokerConfigReply, needs=account(LOOK))
class GetBrokerConfig(Header):
    """Ask for the settings of a broker: reply body is properties text."""


@request(28, "GET_BROKER_RUNTIME_INFO", needs=account(LOOK))
class GetBrokerRuntimeInfo(Header):
    """Ask for the figures of a broker: reply body `KVTable`."""


@request(306, "CLEAN_EXPIRED_CONSUMEQUEUE", changes=True, needs=ADMIN)
class CleanExpiredConsumequeue(Header):
    """Remove entries of consume queues whose messages are gone."""


@request(907, "GET_BROKER_HA_STATUS", since="5.0.0", needs=account(LOOK))
class GetBrokerHaStatus(Header):
    """Ask which slaves copy a master's log, and how far: reply body `CopiesState`. A member of a pair tells its address so."""

    member: str | None = None  # the id of the member that asks: 32 hex digits
    member_addr: str | None = None  # where clients reach it


@request(31060, "SWITCH_MASTER", since="Halfmoon", needs=ADMIN)
class SwitchMaster(Header):
    """Have the master of a pair give the lease to its follower, and follow it. Answered before that has happened."""


@request(31061, "TAKE_OVER", since="Halfmoon", needs=ADMIN)
class TakeOver(Header):
    """Have a slave stop its master's writes, and become the master once it has everything. Answered before that has happened."""


@request(315, "VIEW_BROKER_STATS_DATA", needs=account(LOOK))
class ViewBrokerStatsData(Header):
    """Ask for one statistic of a broker: reply body `BrokerStatsData`."""

    stats_name: str
    stats_key: str


@request(316, "CLEAN_UNUSED_TOPIC", changes=True, needs=ADMIN)
class CleanUnusedTopic(Header):
    """Remove the consume queues of topics that do not exist."""


@request(329, "DELETE_EXPIRED_COMMITLOG", since="4.9.0", changes=True, needs=ADMIN)
class DeleteExpiredCommitlog(Header):
    """Delete expired log files now instead of at the hour of ``deleteWhen``."""
