"""Requests about a broker itself: settings, figures. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.table import Header, request


@request(25, "UPDATE_BROKER_CONFIG", admin=True)
class UpdateBrokerConfig(Header):
    """Change settings of a broker: body is properties text."""


class GetBrokerConfigReply(Header):
    """The version of the settings, as the JSON text of a `DataVersion`."""

    version: str


@request(26, "GET_BROKER_CONFIG", reply=GetBrokerConfigReply)
class GetBrokerConfig(Header):
    """Ask for the settings of a broker: reply body is properties text."""


@request(28, "GET_BROKER_RUNTIME_INFO")
class GetBrokerRuntimeInfo(Header):
    """Ask for the figures of a broker: reply body `KVTable`."""


@request(315, "VIEW_BROKER_STATS_DATA")
class ViewBrokerStatsData(Header):
    """Ask for one statistic of a broker: reply body `BrokerStatsData`."""

    stats_name: str
    stats_key: str
