"""`halfmoon serve`, `nameserver` and `broker`: their options and their ready line.

The options are in one table. `read_options` parses them without Click, because a broker is ready sooner without it; help and errors
go through commands made from the same table (`cli.shared.command_group`).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.places import data_home
from halfmoon.client.constructors.name_servers import NAMESERVER_VARIABLES, default_name_servers
from halfmoon.documentation import see
from halfmoon.errors import HalfmoonError, SettingError, UsageError, kind_of
from halfmoon.logs import to_stderr
from halfmoon.programs.cluster import BROKERS_MAX, cluster
from halfmoon.programs.configuration import BROKER, NAME_SERVER, ServerSettings, configuration
from halfmoon.programs.embedded import SMALL, Program, Programs, broker, kill, name_server, run
from halfmoon.programs.ephemeral import temporary_directory
from halfmoon.programs.pairs.leaving import leave_pair
from halfmoon.programs.pairs.member import member
from halfmoon.programs.pairs.slave import slave
from halfmoon.settings.forms import is_loopback
from halfmoon.settings.java_keys import PLACES
from halfmoon.settings.tls import TlsMode

if TYPE_CHECKING:
    from halfmoon.cli.console.child import ConsoleChild


class Flag(NamedTuple):
    """Option of a server: its flag, the name of its value (empty: a switch), its setting, its help."""

    flag: str
    metavar: str
    setting: str | None
    why: str
    default: str = ""
    many: bool = False

    @property
    def name(self) -> str:
        """The name of its value."""
        return self.flag.strip("-").replace("-", "_")


DATA = Flag("--data", "DIR", None, "The data directory.", "~/.local/share/halfmoon")
CONFIG = Flag("--config", "FILE", None, "Settings: TOML, or a RocketMQ broker.conf.", many=True)
HOST = Flag("--host", "ADDRESS", None, "The address to listen on; anything but loopback requires --allow-remote.", "127.0.0.1")
NAME_SERVER_PORT = Flag("--nameserver-port", "PORT", "nameserver.port", "Port of the name server; 0 takes a free one.", "9876")
BROKER_PORT = Flag("--broker-port", "PORT", "broker.port", "Port of the broker; 0 takes a free one.", "10911")
BROKER_NAME = Flag("--broker-name", "NAME", "broker.name", "Name of the broker.", "broker-a")
CLUSTER = Flag("--cluster", "NAME", "broker.cluster", "Cluster of the broker.", "DefaultCluster")
SLAVE_OF = Flag(
    "--slave-of",
    "NAME",
    None,
    "Be a slave of this broker: copy its messages and serve reads; it can take over later.",
)
RESYNC = Flag("--resync", "", None, "If the copy cannot be continued, move it to quarantine/copy and copy everything again.")
LEASE = Flag(
    "--lease",
    "URL",
    "broker.lease",
    "Be a member of a pair: two brokers with one name and one lease; postgresql://…, etcd://… or kubernetes://…",
)
LEAVE_PAIR = Flag("--leave-pair", "", None, "Make the directory of a pair's member that of a plain broker, for good.")
REGISTER_WITH = Flag(
    "--nameserver",
    "ADDRESSES",
    "broker.nameserver",
    "Name servers to register with, separated by ';' (for broker, also HALFMOON_NAMESERVER or NAMESRV_ADDR).",
)
SET = Flag("--set", "KEY=VALUE", None, "Any setting, by its name here or in RocketMQ's broker.conf; may be repeated.", many=True)
ACL = Flag("--acl", "FILE", None, "File of accounts (plain_acl.yml): accept requests from these accounts only.")
ALLOW_REMOTE = Flag("--allow-remote", "", None, "Accept connections from other machines; requires --acl and TLS, or --insecure.")
NAMES_REMOTE = Flag("--allow-remote", "", None, "Accept connections from other machines; see register_secret for who registers.")
INSECURE = Flag("--insecure", "", None, "With --allow-remote: let every machine send, read and administer, without accounts.")
BROKERS = Flag("--brokers", "N", None, f"A cluster of N brokers, up to {BROKERS_MAX}, to try and test with; ports ten apart.", "1")
EPHEMERAL = Flag("--ephemeral", "", None, "For tests: free ports, small files in a temporary directory, ready line as JSON.")
UNTIL_EOF = Flag("--until-eof", "", None, "Stop when standard input ends, as a pipe does when the process at its other end dies.")
HTTP_PORT = Flag(
    "--http-port", "PORT", "http.http_port", "Port for monitoring: /metrics, /healthz and /readyz; 0 takes a free one."
)
CONSOLE = Flag("--console", "", None, f"Run the console beside it, in a process of its own, on loopback ({see('console')}).")
CONSOLE_PORT = Flag("--console-port", "PORT", None, "Port of the console; 0 takes a free one.", "8480")
LOG = Flag("--log", "LEVEL", None, "Log level (stderr): error, warning, info or debug.", "warning")
JSON = Flag("--json", "", None, "Print the ready line as JSON.")

OPTIONS = {
    "serve": (
        DATA, CONFIG, HOST, NAME_SERVER_PORT, BROKER_PORT, BROKER_NAME, CLUSTER, REGISTER_WITH, LEAVE_PAIR, SET, ACL, ALLOW_REMOTE,
        INSECURE, BROKERS, EPHEMERAL, UNTIL_EOF, HTTP_PORT, CONSOLE, CONSOLE_PORT, LOG, JSON,
    ),
    "nameserver": (DATA, CONFIG, HOST, NAME_SERVER_PORT, SET, NAMES_REMOTE, HTTP_PORT, LOG, JSON),
    "broker": (
        DATA, CONFIG, HOST, BROKER_PORT, BROKER_NAME, CLUSTER, REGISTER_WITH, SLAVE_OF, LEASE, RESYNC, LEAVE_PAIR, SET, ACL,
        ALLOW_REMOTE, INSECURE, HTTP_PORT, LOG, JSON,
    ),
}  # fmt: skip

HELP = {
    "serve": """Run a name server and a broker in one process.

    Prints one line when clients may connect. SIGTERM or Ctrl-C stops it cleanly, a second one at once.

    Example: halfmoon serve --data ./data --set flushDiskType=SYNC_FLUSH

    Example: halfmoon serve --ephemeral --brokers 3""",
    "nameserver": """Run a name server alone.

    Example: halfmoon nameserver --data ./names --nameserver-port 9876""",
    "broker": """Run a broker alone: another master of a cluster.

    Example: halfmoon broker --nameserver 127.0.0.1:9876 --broker-name broker-b --broker-port 10921 --data ./data-b

    Example: halfmoon broker --nameserver 127.0.0.1:9876 --slave-of broker-a --broker-port 10921 --data ./copy""",
}

MISSED_IF_IGNORED = frozenset({
    "enableBroadcastOffsetStore", "storePathDLedgerCommitLog", "storePathEpochFile", "storePathBrokerIdentity",
    "readOnlyCommitLogStorePaths", "kvConfigPath", "configStorePath", "brokerConfigPath",
})  # fmt: skip
"""RocketMQ's keys that would change results for users, and are ignored here: this is logged as a warning."""

AS_IT_IS_ANYWAY = {
    "enableBroadcastOffsetStore": "false",
}  # fmt: skip
"""Values of these keys that match what Halfmoon does: they are logged at INFO."""

_FREE_PORTS = {"nameserver.port": 0, "broker.port": 0}

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


# ---------------------------------------------------------------- reading options


def run_server(name: str, arguments: Sequence[str]) -> int | None:
    """Run a server and return the exit code; None when its arguments ask for help or are wrong."""
    values = read_options(OPTIONS[name], arguments)
    return None if values is None else serve(name, values)


def read_options(options: Sequence[Flag], arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the values of ``--flag value``, ``--flag=value`` and switches by name; None for anything else."""
    known = {option.flag: option for option in options}
    values: dict[str, Any] = {option.name: [] if option.many else None if option.metavar else False for option in options}
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        option = known.get(flag)
        if option is None or (equals and not option.metavar):
            return None
        if not option.metavar:
            values[option.name] = True
            continue
        text = value if equals else next(rest, None)
        if text is None or (not equals and text.startswith("--")):
            return None
        if option.many:
            values[option.name].append(text)
        else:
            values[option.name] = text
    return values


# ---------------------------------------------------------------- running


def serve(name: str, values: Mapping[str, Any]) -> int:
    """Run a server until it is told to stop; return the exit code: 0, 1 (a port or directory is taken) or 2 (a wrong setting)."""
    as_json = bool(values.get("json") or values.get("ephemeral"))
    try:
        with ExitStack() as held:
            if values.get("ephemeral"):
                if values.get("data"):
                    raise UsageError("--ephemeral has a directory of its own, which goes at the end: leave out --data")
                values = {**values, "data": str(held.enter_context(temporary_directory()))}
            settings = settings_from(name, values, os.environ)
            data = data_directory(name, values.get("data"), settings, os.environ)
            _begin_log(name, values.get("log") or "warning", settings)
            count = _count(values.get("brokers"))
            console = _console(values, data)
            if console is not None:
                held.enter_context(console)

            def ready(programs: Programs, watched_at: str) -> None:
                _say_ready(programs, data, watched_at, console.url if console else "", as_json=as_json)
                if console is not None:
                    console.start(programs)
                if values.get("until_eof"):  # not before: until the loop has its signals, one ends the process as it stands
                    Thread(target=_stop_at_eof, daemon=True).start()

            if values.get("leave_pair"):
                leave_pair(settings, data)
            is_slave, resync = values.get("slave_of") is not None, bool(values.get("resync"))
            run(lambda: _programs(name, settings, data, count, console, is_slave=is_slave, resync=resync), ready, settings.http)
    except HalfmoonError as exc:
        return _refused(name, exc, as_json=as_json)
    except OSError as exc:
        return _refused(name, exc, as_json=as_json)
    return 0


def _stop_at_eof() -> None:
    """Wait for the end of standard input, then stop as SIGTERM does."""
    with suppress(OSError, ValueError):
        while sys.stdin is not None and sys.stdin.buffer.read(4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _count(text: str | None) -> int:
    """Return the number of brokers to start. Raises UsageError."""
    numbers = {str(number): number for number in range(1, BROKERS_MAX + 1)}
    if text is not None and text not in numbers:
        raise UsageError(f"--brokers {text:.20}: must be a number from 1 to {BROKERS_MAX}")
    return 1 if text is None else numbers[text]


def settings_from(name: str, values: Mapping[str, Any], environment: Mapping[str, str]) -> ServerSettings:
    """Return the checked settings that options, files and environment ask for. Raises SettingError, UsageError."""
    sections = {"serve": {**NAME_SERVER, **BROKER}, "nameserver": NAME_SERVER, "broker": BROKER}[name]
    files = [*filter(None, [environment.get("HALFMOON_CONFIG")]), *values.get("config", [])]
    known = default_name_servers(environment if name == "broker" else {})
    if known.conflict and values.get("nameserver") is None:
        logging.getLogger("halfmoon.cli").warning("%s", known.conflict)
    from_environment = [f"broker.nameserver={known.addresses}"] if known.addresses else []
    # They name the cluster that clients use: `serve` has a name server of its own.
    environment = {variable: text for variable, text in environment.items() if variable not in NAMESERVER_VARIABLES}
    small = [f"{key}={value}" for key, value in {**SMALL, **_FREE_PORTS}.items()] if values.get("ephemeral") else []
    flags = [f"{o.setting}={values[o.name]}" for o in OPTIONS[name] if o.setting and values.get(o.name) is not None]
    flags += _of_slave(values)
    if values.get("acl") is not None:
        flags += ["broker.acl_enable=true", f"broker.acl_file={values['acl']}"]
    settings = configuration(
        sections,
        host=values.get("host"),
        files=files,
        environment=environment,
        assignments=[*from_environment, *small, *values.get("set", []), *flags],
    )
    _check_pair(name, settings, values)
    if not is_loopback(settings.host):
        _check_remote(name, settings, values)
    http = settings.http
    if http.http_port is not None and not is_loopback(http.http_host) and not values.get("allow_remote"):
        raise UsageError(f"http_host={http.http_host} lets other machines read names and figures: add --allow-remote to allow it")
    return settings


LEASE_OR_SLAVE = "--lease decides who is the slave of whom: leave out --slave-of, and give both members one --broker-name"


def _of_slave(values: Mapping[str, Any]) -> list[str]:
    """Return the assignments of a slave: it has the name of its master. Raises UsageError."""
    if values.get("slave_of") is None:
        return []
    if values.get("lease") is not None:
        raise UsageError(LEASE_OR_SLAVE)
    if values.get("broker_name") is not None:
        raise UsageError("--slave-of NAME is the name of the broker: leave out --broker-name")
    return [f"broker.name={values['slave_of']}"]


def _check_pair(name: str, settings: ServerSettings, values: Mapping[str, Any]) -> None:
    """Raise UsageError for a lease where there can be no pair, and for a switch that only slaves have."""
    if values.get("resync") and values.get("slave_of") is None and not settings.broker.lease:
        raise UsageError("--resync is for a slave: give --slave-of or --lease, or leave it out")
    if values.get("leave_pair") and (settings.broker.lease or values.get("slave_of") is not None):
        raise UsageError("--leave-pair starts a broker alone: leave out --lease and --slave-of")
    if not settings.broker.lease:
        if settings.broker.copies_min > 1:
            raise UsageError("copies_min=2 is for a pair: give --lease, or leave it out")
    elif values.get("slave_of") is not None:
        raise UsageError(LEASE_OR_SLAVE)
    elif name == "serve":
        raise UsageError(
            "a pair has its name servers in processes of their own: start halfmoon nameserver, and halfmoon broker with --lease "
            f"({see('pairs')})"
        )


def _check_remote(name: str, settings: ServerSettings, values: Mapping[str, Any]) -> None:
    """Raise UsageError for a server that other machines can reach without permission, or without accounts."""
    if not values.get("allow_remote"):
        how = "" if name == "nameserver" else f", and --acl FILE with accounts for it ({see('access')})"
        raise UsageError(f"--host {settings.host} lets other machines connect: add --allow-remote to allow it{how}")
    broker = settings.broker
    if (
        name != "nameserver"
        and broker.acl_enable
        and not broker.acl_without_tls
        and settings.tls.server_mode is not TlsMode.ENFORCING
    ):
        raise UsageError(
            "accounts without TLS: a signed request can be overheard and repeated: require TLS for all connections "
            f"(tls.server.mode=enforcing, {see('tls')}); or --set acl_without_tls=true, where the network keeps strangers out"
        )
    if name != "nameserver" and not broker.acl_enable and not values.get("insecure"):
        raise UsageError(
            "--allow-remote without accounts lets every machine send, read and administer: give --acl FILE (or aclEnable=true) "
            f"with accounts, see {see('access')}; or --insecure, where the network keeps strangers out"
        )


def data_directory(name: str, given: str | None, settings: ServerSettings, environment: Mapping[str, str]) -> Path:
    """Return the data directory of a server.

    It is the given one, else that of a broker's setting (``storePathRootDir``), of ``HALFMOON_DATA``, or the user's (XDG).

    Raises SettingError if a setting puts a part of the store outside of that directory.
    """
    chosen = given or settings.store.data or environment.get("HALFMOON_DATA")
    own = "nameserver" if name == "nameserver" else ""
    data = Path(chosen).expanduser() if chosen else data_home(environment) / own
    for ignored in settings.ignored:
        if ignored.key not in PLACES:
            continue
        if Path(ignored.value).expanduser().absolute() != (data / PLACES[ignored.key]).absolute():
            raise SettingError(
                f"{ignored.source}: {ignored.key}={ignored.value}: the store is one directory, here {data}: leave this out, or "
                f"make it {data / PLACES[ignored.key]}"
            )
    return data


def _console(values: Mapping[str, Any], data: Path) -> ConsoleChild | None:
    """Return the console of `serve`, its port bound; None without --console, which then costs no import."""
    port = values.get("console_port")
    if not values.get("console"):
        if port is not None:
            raise UsageError("--console-port is for --console")
        return None
    from halfmoon.cli.console.child import ConsoleChild
    from halfmoon.cli.console.listening import PORT

    default = 0 if values.get("ephemeral") else PORT
    if port is not None and not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536):
        raise UsageError(f"--console-port {port:.20}: must be a number from 0 to 65535")
    return ConsoleChild(default if port is None else int(port), data / "console")


async def _programs(
    name: str, settings: ServerSettings, data: Path, count: int, console: ConsoleChild | None, *, is_slave: bool,
    resync: bool = False,
) -> Programs:  # fmt: skip
    if is_slave:
        return (await slave(settings, data, resync=resync),)
    if settings.broker.lease:
        return (await member(settings, data, resync=resync),)
    if name == "serve":
        programs = await cluster(settings, data, count)
        try:
            if console is not None:
                console.check(programs)
        except BaseException:
            await kill(programs)
            raise
        return programs
    return (await name_server(settings, data),) if name == "nameserver" else (await broker(settings, data),)


def _begin_log(name: str, level: str, settings: ServerSettings) -> None:
    if level not in LEVELS:
        raise UsageError(f"--log {level}: must be one of {', '.join(LEVELS)}")
    to_stderr(LEVELS[level])
    log = logging.getLogger("halfmoon.cli")
    for ignored in settings.ignored:
        missed = ignored.key in MISSED_IF_IGNORED and ignored.value.lower() != AS_IT_IS_ANYWAY.get(ignored.key)
        level_of_it = logging.WARNING if missed else logging.INFO
        log.log(level_of_it, "setting ignored: key=%s source=%s reason=%s", ignored.key, ignored.source, ignored.reason)
    if not is_loopback(settings.host):
        names = settings.nameserver
        registrars = names.register_from or names.register_secret or names.register_certificates
        if name != "broker" and not registrars and not settings.broker.acl_enable:
            log.warning("listening on %s: other machines may register brokers there: see register_secret", settings.host)
        if name != "nameserver" and not settings.broker.acl_enable:
            log.warning("listening on %s without accounts: other machines may read, send and administer", settings.host)
    if settings.http.http_port is not None and not is_loopback(settings.http.http_host):
        log.warning("monitoring on %s knows no accounts: other machines may read names and figures", settings.http.http_host)


def _say_ready(programs: Programs, data: Path, watched_at: str, console: str, *, as_json: bool) -> None:
    """Write the ready line: clients may connect."""
    names = next((each for each in programs if each.broker is None and each.standby is None and each.pair_member is None), None)
    brokers: list[Program] = [program for program in programs if program.broker is not None]
    facts: dict[str, Any] = {"ready": True, "pid": os.getpid(), "data": str(data)}
    texts = []
    if names is not None:
        facts["nameserver"] = names.address
        texts.append(f"name server {names.address}")
    log = logging.getLogger("halfmoon.cli")
    for program in brokers:
        assert program.broker is not None
        own = program.broker.settings
        if not own.nameserver:
            log.warning(
                "broker %s has no name server, so clients do not find it: give --nameserver or HALFMOON_NAMESERVER", own.name
            )
        first = {"broker": program.address, "broker_name": own.name, "cluster": own.cluster, "nameserver": own.nameserver}
        facts = {**first, **facts}
        facts.setdefault("brokers", {})[own.name] = program.address
        texts.append(f"broker {own.name} {program.address}" + ("" if own.nameserver else " (registered nowhere)"))
    for program in programs:
        if program.pair_member is not None and program.serving is None:
            facts |= {"pair": program.pair_member.name, "broker": program.pair_member.address}
            texts.append(f"member {program.pair_member.address} of the pair {program.pair_member.name} waits for the lease")
        if program.serving is not None:
            own = program.serving.settings
            facts |= {"slave_of": own.name, "broker_id": own.broker_id, "broker": program.address, "nameserver": own.nameserver}
            texts.append(f"slave {own.broker_id} of {own.name} {program.address}")
    if watched_at:
        facts["http"] = watched_at
        texts.append(f"monitoring {watched_at}/metrics")
    if console:
        facts["console"] = console
        texts.append(f"console {console}")
    say(json.dumps(facts) if as_json else f"halfmoon ready: {', '.join(texts)}, data in {data}")


def _refused(name: str, error: Exception, *, as_json: bool) -> int:
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    facts = {"error": text, "kind": kind_of(error), "code": None}  # as other commands say it
    say(json.dumps(facts) if as_json else f"halfmoon {name}: {text}", error=True)
    return 2 if isinstance(error, UsageError) else 1
