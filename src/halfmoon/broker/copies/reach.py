"""`Reach`: whether other machines reach a broker at the address with which it registers. Says once if not; changes nothing."""

from __future__ import annotations

import logging

from halfmoon.settings.forms import is_loopback

log = logging.getLogger("halfmoon.broker")


class Reach:
    """Address of a broker, ``host:port``, beside those of its name servers, its master and its slaves."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.is_doubtful = is_loopback(_host(address))
        """The address leads nowhere from another machine, and that was not said yet."""

    def met(self, who: str, address: str) -> None:
        """Warn if somebody with whom the broker works is on another machine. ``address`` is an IP address with its port."""
        if self.is_doubtful and not is_loopback(_host(address)):
            self._warn(f"{who} {address} is on another machine")

    def met_namesake(self, address: str) -> None:
        """Warn if the other member of a pair registers with the address of this one."""
        if self.is_doubtful and address == self._address:
            self._warn("the other member of the pair registers so, too")

    def _warn(self, reason: str) -> None:
        self.is_doubtful = False
        log.warning(
            "no other machine can reach this broker, which registers as %s: %s; give --host the address of this machine, or set"
            " broker.address (brokerIP1)", self._address, reason,
        )  # fmt: skip


def _host(address: str) -> str:
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]").removeprefix("::ffff:")
