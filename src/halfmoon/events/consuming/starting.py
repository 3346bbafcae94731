"""Where a group begins whose events need not be kept while nobody is online (``persistence=False``): at the end, if nobody is."""

from __future__ import annotations

import logging

from halfmoon.client.admin import AsyncAdmin
from halfmoon.client.aio import PushSettings
from halfmoon.errors import GroupNotFound, HalfmoonError
from halfmoon.results import OffsetMove

log = logging.getLogger("halfmoon.events")


async def skip_what_was_missed(settings: PushSettings, topics: list[str]) -> None:
    """Move a group behind what lies in topics, where no member of it is online. Never back. What fails is logged: events are kept.

    The ends are read before the members are: what is skipped was there when nobody was online yet, even if another member starts at
    the same time.
    """
    try:
        async with AsyncAdmin(nameserver=settings.nameserver, namespace=settings.namespace) as admin:
            for topic in topics:
                await _skip(admin, settings.group, topic)
    except HalfmoonError as exc:
        log.warning("what was published while nobody was online is kept: group=%s reason=%s", settings.group, exc)


async def _skip(admin: AsyncAdmin, group: str, topic: str) -> None:
    try:
        found = await _ends(admin, group, topic)
    except HalfmoonError as exc:
        log.info("nothing is skipped: group=%s topic=%s reason=%s", group, topic, exc)
        return
    if any(one.members for one in found):
        return
    ahead = {one.queue: one.then for one in found if one.now is None or one.then > one.now}
    if ahead:
        await admin.reset_offsets(group, topic, ahead)
        log.info("nobody was online, what was published is skipped: group=%s topic=%s queues=%d", group, topic, len(ahead))


async def _ends(admin: AsyncAdmin, group: str, topic: str) -> list[OffsetMove]:
    try:
        return await admin.reset_offsets(group, topic, "latest", dry_run=True)
    except GroupNotFound:
        await admin.create_group(group)
        return await admin.reset_offsets(group, topic, "latest", dry_run=True)
