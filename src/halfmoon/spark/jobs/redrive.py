"""Dead letters of a running cluster: read through the source, reported, and sent again by the brokers' own ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from halfmoon.client.admin import Admin
from halfmoon.errors import NoRoute
from halfmoon.model import DeadLetter
from halfmoon.spark.jobs import dead_letters
from halfmoon.spark.jobs.dead_letters import Replay, Told
from halfmoon.spark.jobs.reading import Place, ends_of, frame_of
from halfmoon.wire.ids import offset_msg_id, pack_host


def dead_letters_of(
    session: SparkSession, place: Place, groups: Sequence[str] | None = None, *, since_ms: int | None = None
) -> DataFrame:
    """Return the dead letters of groups, see `halfmoon.spark.jobs.dead_letters.letters`. ``groups`` None: of all.

    ``since_ms``: only those given up since.
    """
    prefix = dead_letters.PREFIX
    topics = (
        [prefix + group for group in groups] if groups else [name for name in place.client().topics() if name.startswith(prefix)]
    )
    return dead_letters.letters(frame_of(session, place, ends_of(place, topics, since_ms=since_ms)))


def replay_dead_letters(
    session: SparkSession, place: Place, chosen: DataFrame, replay: Replay, *, on_progress: Told = lambda done, failed: None
) -> DataFrame:
    """Send what `dead_letters_of` found (or some of its rows) again, each once; return audit rows.

    See `halfmoon.spark.jobs.dead_letters.replayed`.
    """
    with Admin(nameserver=place.endpoints) as admin:
        masters = {
            name: broker.broker_addrs[0] for name, broker in admin.cluster().broker_addr_table.items() if 0 in broker.broker_addrs
        }

        def find(row: Any) -> DeadLetter:
            address = masters.get(row.brokerName)
            if address is None:
                raise NoRoute(f"broker {row.brokerName} has no master now")
            return admin.dead_letter(offset_msg_id(pack_host(address), row.commitOffset))

        return dead_letters.replayed(session, chosen, replay, find, admin.replay_dead_letter, on_progress=on_progress)
