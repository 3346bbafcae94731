"""Checks of servers: what listens at an address, how far away it is, TLS, accounts, clocks and versions."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import halfmoon
from halfmoon.cli.doctor.check import NOTE, OK, PROBLEM, WARNING, Check
from halfmoon.cli.shared.target import CREDENTIALS
from halfmoon.documentation import see
from halfmoon.errors import AccessRefused, HalfmoonError, NetworkError, text_of
from halfmoon.results import StatusLimits
from halfmoon.shown.texts import no_master_text

CONNECT_S = 2.0
SLOW_MS = 100.0
"""Round trip from which on every send is slow."""
CLOCK_MS = 5_000
"""Difference of clocks that is reported. Brokers tell their time to a second."""
PORTS = {9876: "name server", 10911: "broker"}
"""Ports of `halfmoon serve`."""


def name_server(address: str) -> Iterator[Check]:
    """Check that an address is that of a name server which answers, and its certificate."""
    name = f"name server {address}"
    with halfmoon.Admin(nameserver=address) as admin:
        try:
            kind = admin.server_kind(address)
            took_ms = _took_ms(lambda: admin.server_kind(address)) / 2  # two requests
        except NetworkError as exc:
            yield _unreachable(name, address, exc)
            return
    if kind == "broker":
        remedy = "give the address of the name server: --nameserver, port 9876 by default"
        yield Check(name, PROBLEM, f"{address} is a broker, not a name server", remedy)
    elif kind is None:
        remedy = "give the address of a name server: --nameserver"
        yield Check(name, PROBLEM, f"{address} is neither a name server nor a broker", remedy)
    else:
        yield _far(name, took_ms, "answers")
        if _encrypted():
            yield from _certificate(address)


def _took_ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def _unreachable(name: str, address: str, error: NetworkError) -> Check:
    """Return the check of a server that does not answer, with what its port tells."""
    if _encrypted():
        return Check(name, PROBLEM, f"no encrypted connection: {error}", f"see {see('tls')}; leave TLS out if the server has none")
    try:
        with socket.create_connection(_host_and_port(address), CONNECT_S) as connection:
            speaks_tls = _speaks_tls(connection)
    except (OSError, ValueError):
        remedy = "start it (halfmoon serve), or give another address: --nameserver HOST:PORT"
        return Check(name, PROBLEM, f"nobody answers: {error}", remedy)
    if speaks_tls:
        return Check(name, PROBLEM, f"{address} takes encrypted connections only", f"--tls --tls-ca FILE; see {see('tls')}")
    what = f"the program that listens at {address} does not speak RocketMQ's protocol"
    return Check(name, PROBLEM, what, "give the address of a name server: --nameserver")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _encrypted() -> bool:
    """Return whether options or variables have clients of this process encrypt."""
    return any(os.environ.get(f"HALFMOON_TLS{name}", "").lower() not in ("", "0", "false") for name in ("", "_CA", "_CERT"))


def _speaks_tls(connection: socket.socket) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), context.wrap_socket(connection):
        return True
    return False


def _certificate(address: str) -> Iterator[Check]:
    """Yield how long a server's certificate is valid, or why that is not known, as where a client's certificate is needed."""
    name, host = f"certificate of {address}", os.environ.get("HALFMOON_TLS_SERVER_NAME") or _host_and_port(address)[0]
    try:
        context = ssl.create_default_context(cafile=os.environ.get("HALFMOON_TLS_CA") or None)
        with (
            socket.create_connection(_host_and_port(address), CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            left_s = ssl.cert_time_to_seconds(str((connection.getpeercert() or {})["notAfter"])) - time.time()
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "verify_message", "") or exc
        yield Check(name, NOTE, f"is not verified here, so its end is not known: {reason}", f"see {see('tls')}")
        return
    state = OK if left_s * 1000 >= StatusLimits().certificate_ms else WARNING
    yield Check(name, state, f"valid for {left_s // 86_400:.0f} days", "" if state == OK else f"renew it; see {see('tls')}")


def _far(name: str, took_ms: float, what: str) -> Check:
    text = f"{what} in {took_ms:.1f} ms"
    if took_ms > SLOW_MS:
        return Check(name, WARNING, text, "every send takes at least as long: run clients nearer to the brokers")
    return Check(name, OK, text)


def cluster(nameserver: str) -> Iterator[Check]:
    """Yield the checks of the brokers that name servers know, and of the account. Raises HalfmoonError."""
    with halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = admin.cluster().broker_addr_table
        members = [
            (f"broker {name}" + (f" ({broker_id})" if broker_id else ""), address)
            for name, data in sorted(brokers.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        if not members:
            yield Check("brokers", PROBLEM, "the name servers know no broker", f"halfmoon broker --nameserver '{nameserver}'")
            return
        for name, data in sorted(brokers.items()):
            if 0 not in data.broker_addrs:
                text = no_master_text(name, list(data.broker_addrs.values()))
                yield Check(f"master of {name}", PROBLEM, text, f"start it, or see the logs of the others; {see('pairs')}")
        answered, versions = False, set[str]()
        for name, address in members:
            try:
                info = admin.broker_runtime_info(address)
            except NetworkError as exc:
                remedy = "start it; if it runs, set brokerIP1 to an address that clients reach"
                yield Check(name, PROBLEM, f"does not answer: {exc}", remedy)
            except AccessRefused as exc:
                remedy = f"--credentials FILE or HALFMOON_ACCESS_KEY, with an account; see {see('access')}"
                yield Check(name, PROBLEM, f"no access: {text_of(exc)}", remedy)
            except HalfmoonError as exc:
                yield Check(name, PROBLEM, f"refuses the request: {text_of(exc)}", "see the broker's log")
            else:
                version = " native ".join(filter(None, (info.get("brokerVersionDesc", "unknown"), info.get("nativeVersion"))))
                answered = True
                if "nativeVersion" in info:  # a broker of Apache's beside ours, such as a slave, has a version of its own
                    versions.add(version)
                yield from _broker(name, version, info, _took_ms(partial(admin.broker_runtime_info, address)))
        if len(versions) > 1:
            text = f"brokers run {' and '.join(sorted(versions))}"
            yield Check("versions of brokers", NOTE, text, "upgrade the older ones, one by one")
        if answered:
            source = next((name for name in CREDENTIALS if os.environ.get(name)), None)
            signed = f"requests are signed by the account of {source}" if source else "brokers take unsigned requests"
            yield Check("account", OK, signed)


def _broker(name: str, version: str, info: Mapping[str, str], took_ms: float) -> Iterator[Check]:
    if fault := info.get("brokerFaults"):
        yield Check(name, PROBLEM, fault, f"see {see('pairs' if 'pairState' in info else 'production')}")
    if pair := info.get("pairState"):
        yield Check(f"pair of {name}", OK if fault is None else NOTE, pair)
    yield _far(name, took_ms, f"version {version}, answers")
    running_ms, started = running_of(info.get("runtime", "")), info.get("bootTimestamp", "")
    if running_ms is None or not started.isdecimal():
        return
    ahead_ms = int(started) + running_ms - time.time_ns() // 1_000_000  # to a second
    if abs(ahead_ms) < CLOCK_MS:
        yield Check(f"clock of {name}", OK, f"differs from this machine's by less than {CLOCK_MS // 1000} s")
    else:
        text = f"is {abs(ahead_ms) // 1000:,} s {'ahead of' if ahead_ms > 0 else 'behind'} this machine's"
        remedy = "set both by NTP: delays, checks of transactions and times of messages depend on them"
        yield Check(f"clock of {name}", WARNING, text, remedy)


def running_of(text: str) -> int | None:
    """Return the ms of RocketMQ's ``[ 0 days, 1 hours, 2 minutes, 3 seconds ]``; None: it is something else."""
    words = text.strip("[] ").replace(",", "").split()
    if words[1::2] != ["days", "hours", "minutes", "seconds"] or not all(word.isdecimal() for word in words[::2]):
        return None
    days, hours, minutes, seconds = map(int, words[::2])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def group(nameserver: str, name: str) -> Check:
    """Check the members of a group, of producers or of consumers: their languages and versions."""
    title = f"group {name}"
    with halfmoon.Admin(nameserver=nameserver) as admin:
        try:
            members = admin.clients(name).clients
        except HalfmoonError as exc:
            return Check(title, PROBLEM, f"its members are not known: {text_of(exc)}", "see the checks above")
    kinds: dict[str, list[str]] = {}
    for member in members:
        kinds.setdefault(f"{member.language} {member.version}", []).append(member.client_id)
    if not kinds:
        return Check(title, WARNING, "has no member that is connected", "start one, or give the name of another group")
    shown = "; ".join(f"{kind}: {', '.join(sorted(set(ids)))}" for kind, ids in sorted(kinds.items()))
    if len(kinds) > 1:
        return Check(title, WARNING, f"its members run {len(kinds)} versions: {shown}", "run the same version in all members")
    return Check(title, OK, shown)


def ports() -> Iterator[Check]:
    """Yield what listens at the ports of `halfmoon serve` on this machine."""
    for port, wanted in PORTS.items():
        name, address = f"port {port}", f"127.0.0.1:{port}"
        try:
            socket.create_connection(("127.0.0.1", port), CONNECT_S).close()
        except OSError:
            yield Check(name, OK, f"free: halfmoon serve puts its {wanted} there")
            continue
        kind = _kind(address, use_tls=False) or _kind(address, use_tls=True)
        if kind == wanted:
            yield Check(name, OK, f"a {kind} listens")
        else:
            what = f"a {kind} listens" if kind else "a program listens that does not speak RocketMQ's protocol"
            option = "--nameserver-port" if wanted == "name server" else "--broker-port"
            yield Check(name, WARNING, f"{what}, where halfmoon serve puts its {wanted}", f"stop it, or give {option}")


def _kind(address: str, *, use_tls: bool) -> str | None:
    """Return what server listens on this machine; None: none that speaks RocketMQ's protocol in this way."""
    with halfmoon.Admin(nameserver=address, use_tls=use_tls, tls_verify=False) as admin:
        try:
            return admin.server_kind(address)
        except HalfmoonError:
            return None
