"""Arguments of a `Publisher`: their meaning, and which do not go together. Opens nothing."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from halfmoon import TransactionSettings
from halfmoon.errors import SettingError, UsageError
from halfmoon.events.databases import registry
from halfmoon.events.databases.database import Provider
from halfmoon.events.databases.given import described
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.event import check_flag, check_name, check_whole
from halfmoon.events.local_block import LOCAL
from halfmoon.events.outbox.relay import RelaySettings
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.events.publishing.transport import Transport

CHECK_AFTER_S_MAX = 7 * 24 * 3600


def provider_of(session: Any, provider: Provider | None, bind: Any, schema: str | None) -> Provider:
    """Return the provider that was given, that of the sessions that were, or that of blocks without a database."""
    if bind is not None and session is None:
        raise UsageError("bind= says which engine of session= has the tables of events: give both or neither")
    if schema is not None and session is None:
        raise UsageError("schema= belongs to session=: a provider has its own (dbapi.provider(…, schema=…))")
    if session is not None and provider is not None:
        raise UsageError("give a publisher a session or a provider, not both")
    if session is None:
        registry.load_packages()  # from now on the open blocks of their libraries are known
        if provider is not None and not registry.is_provider(provider):
            raise UsageError(
                f"provider= is {described(provider)}: give one such as halfmoon.events.dbapi.provider(connect); a sessionmaker, an "
                "Engine or the alias of a Django database is session="
            )
        return LOCAL if provider is None else provider
    found: Provider = registry.provider_of(session, "session", bind=bind, schema=schema)
    return found


def transport_of(given: Any, group: str, nameserver: str, settings: Mapping[str, Any], others: Collection[str]) -> Transport:
    """Return the transport that was given, a new member of the bus that was, or one over the client with its settings.

    ``others`` are the publisher's other arguments, which a setting that is unknown may be a misspelling of.
    """
    if given is not None and (nameserver or settings):
        raise UsageError("give a publisher a transport, or a name server and client settings, not both")
    _check_known(settings, others)
    if given is None:
        return ClientTransport(group, nameserver, **settings)
    member = given.transport(group) if callable(getattr(given, "transport", None)) else given
    if not callable(getattr(member, "prepare", None)):
        raise UsageError(f"transport={given!r:.60}: give a MemoryBus or another Transport")
    transport: Transport = member
    return transport


def _check_known(settings: Mapping[str, Any], others: Collection[str]) -> None:
    known = [field.name for field in fields(TransactionSettings) if field.name not in ("group", "nameserver", "send_timeout_ms")]
    for name in settings:
        if name == "send_timeout_ms":  # each request gets what is left of the publisher's own
            raise SettingError("send_timeout_ms is a producer's: the time of one publish, all attempts included, is timeout_ms")
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *others], 1)
            raise SettingError(f"a publisher has no setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def check_flags(**flags: object) -> None:
    """Raise UsageError for an argument that is neither True nor False, with its name."""
    for name, value in flags.items():
        check_flag(name, value)


def codecs_of(given: Codecs | None) -> Codecs:
    """Return the codecs that were given, or new ones. Raises UsageError for anything else."""
    if given is not None and not isinstance(given, Codecs):
        raise UsageError(f"codecs must be a halfmoon.events.Codecs, not {given!r:.40}")
    return given or Codecs()


def relay_settings_of(given: bool | RelaySettings) -> RelaySettings | None:
    """Return the settings of a publisher's own relay; None for no relay."""
    if not isinstance(given, bool | RelaySettings):
        raise UsageError(f"relay={given!r:.60}: use True, False or RelaySettings(…)")
    return given if isinstance(given, RelaySettings) else RelaySettings() if given else None


def is_outbox(mode: str, *, has_database: bool) -> bool:
    """Return whether a mode is the outbox. Raises UsageError for another word, and for rows without a database."""
    if mode not in ("two-phase", "outbox"):
        raise UsageError(f"mode={mode!r:.40}: use 'two-phase' or 'outbox'")
    if mode == "outbox" and not has_database:
        raise UsageError("mode='outbox' writes rows: give the publisher the database (session=… or provider=…)")
    return mode == "outbox"


def is_transactional(default: str | None, *, has_database: bool) -> bool:
    """Return whether events are transactional that do not say so. Raises UsageError for another word."""
    if default not in (None, "plain", "transactional"):
        raise UsageError(f"default={default!r:.40}: use 'plain' or 'transactional'")
    return has_database if default is None else default == "transactional"


def declared_topics(topics: Collection[str] | None) -> frozenset[str] | None:
    """Return the topics to which events may go; None: any."""
    if isinstance(topics, str) or not isinstance(topics, Collection | None):
        raise UsageError(f"topics={topics!r:.60}: give a list of topics")
    return None if topics is None else frozenset(check_name("topic", topic) for topic in topics)


def checked_after_s(seconds: int | None) -> int | None:
    """Return a ``check_after_s`` that is one, or None."""
    return None if seconds is None else check_whole("check_after_s", seconds, 0, CHECK_AFTER_S_MAX)
