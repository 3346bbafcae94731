"""Takeover: a slave of ours becomes the master in the place of Apache's. Asks it, and waits for its registration."""

from __future__ import annotations

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.ask import ask
from halfmoon.effects import Op, sleep, steady
from halfmoon.errors import HalfmoonError, NetworkError, UsageError
from halfmoon.results import MasterTakeover
from halfmoon.wire.headers.admin import TakeOver

TAKEN_OVER_MS = 60_000
"""Longest wait for the slave: it gives up earlier, and says so."""
LOOK_MS = 100
"""Pause between two looks at the name servers."""
TAKEOVER, FAILED, BEHIND = "takeover", "failed: ", "slaveBehindBytes"
"""Facts in the runtime information of a slave of ours."""


def take_over(admin: AdminCore, name: str, *, timeout_ms: int = TAKEN_OVER_MS) -> Op[MasterTakeover]:
    """Have the slave of ours that follows an Apache master take its place, and return once the name servers know it as the master.

    Of several slaves, the one that lacks the least. Nothing that was acknowledged is lost. In between sends of our clients wait for
    the next master as long as their time allows; those of others fail, and may be repeated. After a failure the old master is the
    master again, unless the error says otherwise.

    Raises:
        UsageError: no such broker is known, or no slave of it is a Halfmoon broker that answers.
        BrokerError: the slave refuses: it does not copy now.
        NetworkError: the slave does not answer, or it could not take over; the text says why, and what to do.
    """
    brokers = (yield from admin.cluster()).broker_addr_table
    if name not in brokers:
        raise UsageError(f"there is no broker {name!r:.100}; known: {', '.join(sorted(brokers)) or 'none'}")
    addresses = brokers[name].broker_addrs
    slave, was = (yield from _slave(admin, name, addresses)), addresses.get(0, "")
    began = yield from steady()
    yield from ask(slave, TakeOver(), b"", admin.settings.request_timeout_ms)
    while (now := (yield from steady())) - began < timeout_ms:
        if (yield from _is_master(admin, name, slave)):
            return MasterTakeover(name, was, slave, now - began)
        yield from sleep(LOOK_MS)
    raise NetworkError(f"{slave} is not the master of {name} within {timeout_ms / 1000:g} s: see its log", slave)


def _slave(admin: AdminCore, name: str, addresses: dict[int, str]) -> Op[str]:
    """Return the address of the slave of ours that lacks the least. Raises UsageError."""
    found: list[tuple[int, str]] = []
    for number, address in sorted(addresses.items()):
        behind = "" if number == 0 else (yield from _texts(admin, address)).get(BEHIND, "")
        if behind.isascii() and behind.isdecimal() and len(behind) < 20:
            found.append((int(behind), address))
    if not found:
        raise UsageError(f"no slave of {name} is a Halfmoon broker that answers: start one with halfmoon broker --slave-of {name}")
    return min(found)[1]


def _is_master(admin: AdminCore, name: str, slave: str) -> Op[bool]:
    """Return whether a slave has become the master, and is registered as that. Raises NetworkError if it failed to."""
    texts = yield from _texts(admin, slave)
    state = texts.get(TAKEOVER, "")
    if state.startswith(FAILED):
        raise NetworkError(f"{slave} could not take over {name}: {state.removeprefix(FAILED)}", slave)
    try:
        brokers = (yield from admin.cluster()).broker_addr_table
    except HalfmoonError:
        return False
    return bool(texts) and BEHIND not in texts and name in brokers and brokers[name].broker_addrs.get(0) == slave


def _texts(admin: AdminCore, address: str) -> Op[dict[str, str]]:
    """Return the runtime information of a broker; nothing where it does not answer."""
    try:
        return (yield from admin.broker_runtime_info(address))
    except HalfmoonError:
        return {}
