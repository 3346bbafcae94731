"""A name server and several brokers in one process: a cluster of one machine, to try and to test with.

Each broker keeps its store in a directory of its own, `broker-1`, `broker-2` and so on, whatever the brokers are called.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from halfmoon.errors import UsageError
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import (
    NAME_SERVER_DIRECTORY,
    Programs,
    both,
    broker,
    kill,
    let_administrators,
    name_server,
    reachable,
    with_register_secret,
)
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.store.layout import COMMIT_LOG

BROKERS_MAX = 9
PORT_STEP = 10
"""From one broker's port to the next one's; between them are those for clients with ``vipChannelEnabled``."""

log = logging.getLogger("halfmoon.serve")


async def cluster(settings: ServerSettings, data: Path, count: int) -> Programs:
    """Return a name server and ``count`` brokers, bound, in the order of starting; one has its store in ``data`` itself.

    The brokers are called as in the settings, then ``-b``, ``-c`` and so on: broker-a, broker-b, broker-c.

    Raises as `both` does, and
        UsageError: the directory holds another number of stores, so that messages would seem to be gone.
    """
    _check(data, count)
    if count == 1:
        return await both(settings, data)
    certificates, settings = Certificates(settings.tls), with_register_secret(settings)
    names = await name_server(settings, data / NAME_SERVER_DIRECTORY, certificates=certificates)
    programs: Programs = (names,)
    beside = f"{reachable(names.host)}:{names.port}"
    servers = ";".join(filter(None, (beside, settings.broker.nameserver)))
    stem, first = settings.broker.name.removesuffix("-a"), settings.broker.port
    try:
        for number in range(count):
            own = replace(
                settings.broker,
                name=f"{stem}-{'abcdefghi'[number]}",
                port=first and first + PORT_STEP * number,
                nameserver=servers,
            )
            programs = *programs, await broker(
                settings._replace(broker=own), data / f"broker-{number + 1}", beside=beside, certificates=certificates
            )  # fmt: skip
    except BaseException:
        await kill(programs)
        raise
    let_administrators(programs)
    return programs


def _check(data: Path, count: int) -> None:
    """Raise UsageError where a start would leave out messages that the directory holds; warn of brokers that stay out."""
    stores = [number for number in range(1, BROKERS_MAX + 1) if (data / f"broker-{number}" / COMMIT_LOG).is_dir()]
    if count > 1 and (data / COMMIT_LOG).is_dir():
        raise UsageError(f"{data} is the store of one broker, which --brokers {count} would leave out: give another --data")
    if count == 1 and stores:
        raise UsageError(f"{data} holds the stores of {len(stores)} brokers: add --brokers {stores[-1]}, or give another --data")
    if out := [f"broker-{number}" for number in stores if number > count]:
        log.warning("stores in %s are left out, with their messages: %s", data, ", ".join(out))
