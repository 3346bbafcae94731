"""`PreviousSecrets`: when the previous secrets of accounts expire, and who still signs with them. Checks no signature.

From where, and when, an account's previous secret was last seen tells its operator whether every client has the new one. That is
noted of requests of the general path, to which heartbeats belong; a connection that signed with it last counts while it is open.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from halfmoon.broker.access.accounts import Account
from halfmoon.shown.texts import time_text

ADDRESSES_MAX = 100
"""Addresses that are kept of one account; who signed longest ago is forgotten."""

NEVER = 1 << 62
"""When a secret expires that does not."""


class Uses(msgspec.Struct):
    """Uses of one account's previous secret since a time: the last request from each address. It expires at ``until_ms``."""

    since_ms: int
    until_ms: int
    by_address: dict[str, int] = {}


class PreviousSecrets:
    """Table of the previous secrets that are still good. ``due_ms`` is when the next of them expires."""

    def __init__(self) -> None:
        self.due_ms = NEVER
        self.by_account: dict[str, Uses] = {}
        self._ended: dict[str, bytes] = {}
        """By access key: the last secret that ended."""

    def count(self, accounts: Mapping[str, Account], before: Mapping[str, Account], now: int) -> dict[str, Account]:
        """Return accounts as they count now, without previous secrets that have expired; ``before`` are those that counted."""
        counting = {key: account.at(now) for key, account in accounts.items()}
        known, self.by_account = self.by_account, {}
        ended, self._ended = self._ended, {}
        for key, account in counting.items():
            secrets = [accounts[key].previous, *(before[key].secrets if key in before else ()), ended.get(key, b"")]
            if gone := [secret for secret in secrets if secret and secret not in account.secrets]:
                self._ended[key] = gone[0]
            if account.previous:
                uses = known[key] if key in known and before[key].previous == account.previous else Uses(now, 0)
                uses.until_ms = account.previous_until_ms
                self.by_account[key] = uses
        self.due_ms = min((uses.until_ms for uses in self.by_account.values()), default=NEVER)
        return counting

    def ended(self, access_key: str) -> bytes | None:
        """Return the last secret of an account that ended, as far as known: who still signs with it does not guess."""
        return self._ended.get(access_key)

    def used(self, access_key: str, host: str, now: int) -> None:
        """Note that an address signed with an account's previous secret."""
        by_address = self.by_account[access_key].by_address
        by_address.pop(host, None)
        if len(by_address) >= ADDRESSES_MAX:
            del by_address[next(iter(by_address))]
        by_address[host] = now


def text(by_account: Mapping[str, Uses]) -> str:
    """Return the runtime information (28): how many accounts have one, until when the last is good, and the last use of any."""
    every = by_account.values()
    if not every:
        return "accounts=0"
    used = max((at for uses in every for at in uses.by_address.values()), default=0)
    until, since = max(uses.until_ms for uses in every), min(uses.since_ms for uses in every)
    return f"accounts={len(every)} until={time_text(until)} used={time_text(used) or 'not'} since={time_text(since)}"
