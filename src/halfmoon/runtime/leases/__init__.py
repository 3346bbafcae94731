"""Stores of the record that decides which broker of a pair is the master: PostgreSQL, etcd, Kubernetes, chosen by a URL.

Each is a `halfmoon.ports.LeaseStore`. No text, error or log line has the password of a URL.
"""

from __future__ import annotations

from halfmoon.errors import SettingError
from halfmoon.ports import LeaseStore
from halfmoon.runtime.leases import etcd, kubernetes
from halfmoon.settings.forms import NAME

FORMS = "postgresql://user:password@host:port/database, etcd://host:port/prefix or kubernetes://namespace/name"


def lease_store(url: str, name: str) -> LeaseStore:
    """Return the store of a lease: ``url`` says in which system, ``name`` (cluster/broker) which record. Connects to nothing yet.

    Raises:
        SettingError: the URL or the name is malformed, a file that the URL names does not load, a driver is not installed, or
            this program does not run in Kubernetes.
    """
    cluster, slash, broker = name.partition("/")
    if not slash or not NAME.fits(cluster) or not NAME.fits(broker):
        raise SettingError(f"lease: {name!r:.300} is not cluster/broker: each must be {NAME.what}")
    scheme, colon, _ = url.partition("://")
    match scheme if colon else "":
        case "postgresql" | "postgres":
            return _postgresql(url, name)
        case "etcd" | "etcds":
            return etcd.from_url(url, name)
        case "kubernetes":
            return kubernetes.from_url(url, name)
    raise SettingError(f"lease: the URL names no known system: use {FORMS}")


def _postgresql(url: str, name: str) -> LeaseStore:
    try:
        from halfmoon.runtime.leases import postgresql
    except ImportError as exc:
        raise SettingError(f"lease: PostgreSQL needs psycopg: pip install 'psycopg[binary]' ({exc})") from None
    return postgresql.from_url(url, name)
