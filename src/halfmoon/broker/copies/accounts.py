"""`AccountsCheck`: the service by which a slave finds that its accounts are not those of its master. Changes neither.

Accounts are not copied: each broker has files of its own, and `halfmoon acl` changes them at all brokers of a name. A slave that
was down meanwhile, or whose file somebody edits, has others, and would bring them back as the master. The slave asks for the
master's digest, with the account by which it copies; a master without one (RocketMQ, older versions of Halfmoon) is not compared.
"""

from __future__ import annotations

import logging

from halfmoon.broker.access.access import RELOAD_MS, Access
from halfmoon.broker.copies.asking import answer
from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.service import Service
from halfmoon.effects import Op, Signal, wait
from halfmoon.errors import HalfmoonError
from halfmoon.instant import Instant
from halfmoon.wire.headers.access import GetBrokerClusterAclInfo, GetBrokerClusterAclInfoReply

log = logging.getLogger("halfmoon.broker")

LOOK_MS = RELOAD_MS + 1_000
"""Interval of looks. Accounts differ if they do at two looks: brokers read a file that changed within `RELOAD_MS`."""
DIFFER = (
    "the accounts of this slave differ from its master's: repeat the last change with halfmoon acl, or copy the master's file of"
    " accounts here"
)


class AccountsCheck(Service):
    """Comparison of the accounts of a slave with those of its master. ``differs``: they do, and the log says so."""

    def __init__(self, standby: Standby, access: Access) -> None:
        self._standby, self._access = standby, access
        self.differs = False
        self._differed = self._is_stopping = False
        self._wake = Signal()

    def keep(self) -> Op[None]:
        """Compare again and again, until the stop."""
        while not self._is_stopping:
            yield from wait(self._wake, LOOK_MS)
            if not self._is_stopping:
                yield from self._look()

    def stop(self, now: Instant) -> None:
        """End the looks."""
        self._is_stopping = True
        self._wake.fire()

    def _look(self) -> Op[None]:
        try:
            reply = yield from answer((yield from self._standby.address()), GetBrokerClusterAclInfo())
            theirs = reply.header(GetBrokerClusterAclInfoReply).accounts_digest
        except HalfmoonError:  # the slave says itself why it does not reach its master, or is refused there
            return
        if theirs is None:
            return
        differed, self._differed = self._differed, theirs != self._access.digest()
        if self._differed and differed and not self.differs:
            self.differs = True
            log.warning("%s: master=%s", DIFFER, reply.header(GetBrokerClusterAclInfoReply).broker_addr)
        elif self.differs and not self._differed:
            self.differs = False
            log.warning("the accounts of this slave are equal to its master's again")
