"""Planned change of the master of a pair: asks the master, and waits until the name servers know another one."""

from __future__ import annotations

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.ask import ask
from halfmoon.effects import Op, sleep, steady
from halfmoon.errors import HalfmoonError, NetworkError, RequestNotSupported, UsageError
from halfmoon.results import MasterSwitch
from halfmoon.shown.texts import absent_text
from halfmoon.wire.headers.admin import SwitchMaster

SWITCHED_MS = 30_000
"""Longest wait for the other member: several times what a follower takes that has everything."""
LOOK_MS = 100
"""Pause between two looks at the name servers."""


def switch_master(admin: AdminCore, name: str, *, timeout_ms: int = SWITCHED_MS) -> Op[MasterSwitch]:
    """Have the follower of a pair take over from the master, and return once the name servers know it as the master.

    Nothing that was acknowledged is lost. In between sends of our clients wait for the next
    master as long as their time allows; those of others fail, and may be repeated.

    Raises:
        UsageError: no such broker is known, or it is not in a pair.
        BrokerError: the master refuses: the pair is not complete, or the follower is not connected.
        NetworkError: there is no master now; it does not answer; or it agreed, and within the time no other master was registered.
    """
    brokers = (yield from admin.cluster()).broker_addr_table
    if name not in brokers:
        raise UsageError(f"there is no broker {name!r:.100}; known: {', '.join(sorted(brokers)) or 'none'}")
    before = brokers[name].broker_addrs.get(0)
    if not before:
        raise NetworkError(absent_text({name: brokers[name].broker_addrs}), name)
    epoch = yield from _epoch(admin, before)
    if epoch is None:
        raise UsageError(f"broker {name} at {before} is not in a pair: start it with --lease, and another of the same name")
    began = yield from steady()
    try:
        yield from ask(before, SwitchMaster(), b"", admin.settings.request_timeout_ms)
    except RequestNotSupported:
        raise UsageError(f"broker {name} at {before} cannot change its role") from None
    while (now := (yield from steady())) - began < timeout_ms:
        found = yield from _master(admin, name, epoch)
        if found is not None and found[0] == before:
            raise NetworkError(f"the follower of {name} did not take over: {before} is the master again, epoch {found[1]}", before)
        if found is not None:
            return MasterSwitch(name, before, found[0], found[1], now - began)
        yield from sleep(LOOK_MS)
    raise NetworkError(
        f"{before} agreed to give up its role, but within {timeout_ms / 1000:g} s no other master of {name} was registered: see the"
        " logs of both members",
        before,
    )


def _master(admin: AdminCore, name: str, epoch: int) -> Op[tuple[str, int] | None]:
    """Return address and epoch of a master that came after an epoch; None: there is none yet, or it does not answer yet."""
    try:
        brokers = (yield from admin.cluster()).broker_addr_table
        address = brokers[name].broker_addrs.get(0) if name in brokers else None
        found = (yield from _epoch(admin, address)) if address else None
    except HalfmoonError:
        return None
    return (address, found) if address and found is not None and found > epoch else None


def _epoch(admin: AdminCore, address: str) -> Op[int | None]:
    """Return the epoch of a master; None: it is in no pair."""
    text = (yield from admin.broker_runtime_info(address)).get("pairEpoch", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
