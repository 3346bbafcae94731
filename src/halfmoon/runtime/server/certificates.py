"""Certificate of a server, reloaded when its files change. Reads those files only."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import replace
from pathlib import Path

from halfmoon.errors import SettingError
from halfmoon.runtime.files.secrets import check_private
from halfmoon.runtime.tls import expires_ms, server_context
from halfmoon.settings import load
from halfmoon.settings.tls import ClientCertificates, TlsMode, TlsSettings

log = logging.getLogger("halfmoon.serve")

RELOAD_S = 5.0
"""Interval between checks of the files; a check costs a few system calls."""

CONFIG_BYTES_MAX = 1024 * 1024
"""Longest tls.properties; RocketMQ's own with every key has 2 KiB."""


class Certificates:
    """TLS mode of a port (`mode`), and TLS context of the next connection (`context`; None: TLS is off).

    ``expires_ms`` is when the server's certificate ends (None: TLS is off, or it cannot be read). The mode does not change after
    the start. Sessions are not resumed after a reload. Raises SettingError if the files do not load.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._given = settings
        self.settings = _with_file(settings)
        self._state = _state(self.settings)
        self.mode, self.context = self.settings.server_mode, _context(self.settings)
        self.expires_ms = self._expires_ms()

    def _expires_ms(self) -> int | None:
        return None if self.context is None else expires_ms(self.settings.server_cert)

    @property
    def asks(self) -> bool:
        """Return whether clients are asked for a certificate."""
        return self.context is not None and self.context.verify_mode is not ssl.CERT_NONE

    def refresh(self) -> None:
        """Reload changed files; if they do not load, log it and keep the old context. Blocks: call it in a thread."""
        if self.context is None or (state := _state(self.settings)) == self._state:
            return
        self._state = state
        try:
            settings = self._in_this_mode(_with_file(self._given))
            state = _state(settings)  # before reading, so that a change meanwhile is noticed next time
            context = _context(settings)
            if context is None:
                raise SettingError(f"{settings.config_file} names no certificate any more")
        except SettingError as exc:
            log.error("TLS: files changed and do not load, the old certificate stays: %s", exc)
            return
        self.settings, self._state, self.context = settings, state, context
        self.expires_ms = self._expires_ms()
        log.info("TLS: certificate loaded again: %s", settings.server_cert)

    def _in_this_mode(self, settings: TlsSettings) -> TlsSettings:
        """Return settings with the mode of the start: connections to name servers depend on it."""
        if settings.server_mode is self.mode:
            return settings
        log.warning(
            "TLS: tls.server.mode=%s in %s takes effect at the next start; until then it is %s",
            settings.server_mode.name.lower(), settings.config_file, self.mode.name.lower(),
        )  # fmt: skip
        return replace(settings, server_mode=self.mode)


def _state(settings: TlsSettings) -> list[tuple[int, ...]]:
    """Return the identity of files: inode, mode, size and time of each; empty for a missing one."""
    state: list[tuple[int, ...]] = []
    for path in (settings.config_file, settings.server_cert, settings.server_key, settings.server_trust):
        try:
            facts = os.stat(path)
            state.append((facts.st_ino, facts.st_mode, facts.st_size, facts.st_mtime_ns))
        except OSError:
            state.append(())
    return state


def _with_file(settings: TlsSettings) -> TlsSettings:
    """Return the settings overridden by the file with RocketMQ's keys. Follows TlsHelper.extractTlsConfigFromFile."""
    path = settings.config_file
    if not path:
        return settings
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(CONFIG_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingError(f"tls.config.file {path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from None
    loaded = load({"": TlsSettings}, files=[(path, text)], base={"": settings})
    if loaded.secret_files:
        check_private(Path(path), "the secrets in it")
    return loaded.of(TlsSettings)


def _context(settings: TlsSettings) -> ssl.SSLContext | None:
    if settings.test_mode:
        raise SettingError(
            "tls.test.mode.enable=true: a certificate that nobody can verify protects from nobody; give tls.server.certPath and"
            " tls.server.keyPath"
        )
    if settings.server_mode is TlsMode.DISABLED:
        return None
    if not settings.server_cert:
        if settings.server_mode is TlsMode.ENFORCING:
            raise SettingError("tls.server.mode=enforcing needs a certificate: give tls.server.certPath and tls.server.keyPath")
        if settings.server_client_auth is not ClientCertificates.NONE:
            raise SettingError(
                "tls.server.need.client.auth asks for certificates, and TLS is off without one of the server's own: give"
                " tls.server.certPath and tls.server.keyPath"
            )
        log.info("TLS is off: there is no certificate (tls.server.certPath)")
        return None
    return server_context(settings)
