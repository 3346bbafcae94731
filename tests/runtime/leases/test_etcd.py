"""Leases in etcd: several endpoints, accounts, TLS, and replies that are none of etcd's."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from halfmoon.errors import LeaseUnavailable, SettingError
from halfmoon.ports import LeaseStore
from halfmoon.runtime.leases import lease_store
from halfmoon.runtime.leases.etcd import from_url
from tests.authority import Authority
from tests.interop.process import free_port
from tests.runtime.leases.systems import Etcd, missing, new_name
from tests.waiting import until

WELL_MS, SOON_MS = 30_000, 500
ROOT = {"name": "root", "password": "r/00t"}
ACCOUNT = {"name": "halfmoon", "password": "s3c/ret@"}


def reason(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(LeaseUnavailable) as caught:
        call(*arguments)
    assert "s3c" not in str(caught.value)
    return str(caught.value)


def first(store: LeaseStore, text: bytes = b"1") -> str:
    version = store.write(text, None, WELL_MS)
    assert version is not None
    return version


@contextmanager
def running(*options: str, scheme: str = "http") -> Iterator[Etcd]:
    if why := missing("etcd"):
        pytest.skip(why)
    server = Etcd(*options, scheme=scheme)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with running() as server:
        yield server


@pytest.fixture
def own() -> Iterator[Etcd]:
    """A server of the test's own."""
    with running() as server:
        yield server


def asked(etcd: Etcd, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    """Ask a server as an administrator."""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{etcd.port}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


class Member:
    """An endpoint that notes the paths of its requests, and answers as a function says; None: not before the end."""

    def __init__(self, answer: Callable[[str], tuple[int, bytes] | None]) -> None:
        self.paths: list[str] = []
        self.ends = Event()
        member = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                member.paths.append(self.path)
                if (said := answer(self.path)) is None:
                    member.ends.wait(60)
                    return
                self.send_response(said[0])
                self.send_header("Content-Length", str(len(said[1])))
                self.end_headers()
                self.wfile.write(said[1])

            def log_message(self, *_said: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.ends.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def member() -> Iterator[Callable[[Callable[[str], tuple[int, bytes] | None]], Member]]:
    made: list[Member] = []

    def make(answer: Callable[[str], tuple[int, bytes] | None]) -> Member:
        made.append(Member(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---------------------------------------------------------------- keys and endpoints


def test_the_key_is_the_prefix_and_the_name(etcd: Etcd) -> None:
    for path, key in (("", "/halfmoon"), ("/", "/halfmoon"), ("/a%20b/c", "/a b/c"), ("/%2e%2e/", "/..")):
        name = new_name()
        first(from_url(f"etcd://127.0.0.1:{etcd.port}{path}", name), b"here")
        found = asked(etcd, "/v3/kv/range", {"key": b64encode(f"{key}/{name}".encode()).decode()})
        assert found["kvs"][0]["value"] == b64encode(b"here").decode()


def test_an_endpoint_that_refuses_is_passed_over_for_reads_and_writes(etcd: Etcd) -> None:
    dead = free_port()
    store = from_url(f"etcd://127.0.0.1:{dead},127.0.0.1:{etcd.port}/x", new_name())
    assert store.read(WELL_MS) is None
    version = first(store)
    assert store.read(WELL_MS) == (b"1", version)
    said = reason(from_url(f"etcd://127.0.0.1:{dead},127.0.0.1:{free_port()}/x", "a/b").write, b"1", None, WELL_MS)
    assert said.count("Connection refused") == 2


@pytest.mark.parametrize("answer", [None, (503, b'{"error": "etcdserver: no leader"}'), (200, b"<html>")])
def test_a_member_that_may_have_taken_a_write_is_the_last_one_asked(etcd: Etcd, member: Any, answer: Any) -> None:
    bad = member(lambda path: answer)
    name = new_name()
    store = from_url(f"etcd://127.0.0.1:{bad.port},127.0.0.1:{etcd.port}/x", name)
    assert reason(store.write, b"1", None, SOON_MS).startswith("etcd")
    assert bad.paths == ["/v3/kv/txn"]
    etcds = from_url(f"etcd://127.0.0.1:{etcd.port}/x", name)
    assert etcds.read(WELL_MS) is None


def test_a_member_that_hangs_leaves_time_for_reads_at_the_next(etcd: Etcd, member: Any) -> None:
    hung = member(lambda path: None)
    name = new_name()
    version = first(from_url(f"etcd://127.0.0.1:{etcd.port}/x", name))
    assert from_url(f"etcd://127.0.0.1:{hung.port},127.0.0.1:{etcd.port}/x", name).read(2_000) == (b"1", version)


@pytest.fixture
def three() -> Iterator[list[Etcd]]:
    """Three members, which answer while two of them are there."""
    if why := missing("etcd"):
        pytest.skip(why)
    ports = [free_port() for _ in range(3)]
    cluster = ",".join(f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(ports))

    def member(number: int) -> Etcd:
        return Etcd("--name", f"m{number}", "--initial-cluster", cluster, peer_port=ports[number])

    with ThreadPoolExecutor(3) as pool:  # a member dies with the thread that started it
        members = list(pool.map(member, range(3)))
        yield members
        for one in members:
            one.close()


def test_without_a_majority_there_is_no_answer_and_above_all_no_old_one(three: list[Etcd]) -> None:
    name = new_name()
    store = from_url(f"etcd://{','.join(f'127.0.0.1:{one.port}' for one in three)}/x", name)
    version = first(store)
    three[0].kill()
    assert until(lambda: read_now(store)) == (b"1", version)  # once there is a leader
    three[1].kill()
    assert reason(store.read, SOON_MS)
    assert reason(store.write, b"2", version, SOON_MS)
    three[0].start()
    assert until(lambda: read_now(from_url(f"etcd://127.0.0.1:{three[2].port}/x", name)))[0] in (b"1", b"2")


def read_now(store: LeaseStore) -> object:
    with suppress(LeaseUnavailable):
        return store.read(2_000)
    return None


@pytest.mark.parametrize(
    "said",
    [
        b"", b"{}", b"[]", b'{"header": 1}', b'{"header": {"revision": "x"}}', b'{"header": {"revision": "1"}, "kvs": 5}',
        b'{"header": {"revision": "1"}, "kvs": [{}]}', b'{"header": {"revision": "1"}, "kvs": [{"mod_revision": "1"}, {}]}',
        b'{"header": {"revision": "1"}, "kvs": [{"mod_revision": "1", "value": "%"}]}',
    ],
)  # fmt: skip
def test_a_reply_that_is_none_of_etcds_is_no_sign_that_there_is_no_record(member: Any, said: bytes) -> None:
    store = from_url(f"etcd://127.0.0.1:{member(lambda path: (200, said)).port}/x", "a/b")
    assert "none of etcd's" in reason(store.read, WELL_MS)


@pytest.mark.parametrize("said", [b"", b"[]", b'{"succeeded": true}', b'{"header": {}, "succeeded": true}'])
def test_a_reply_that_is_none_of_etcds_is_no_write(member: Any, said: bytes) -> None:
    store = from_url(f"etcd://127.0.0.1:{member(lambda path: (200, said)).port}/x", "a/b")
    assert "none of etcd's" in reason(store.write, b"1", None, WELL_MS)


# ---------------------------------------------------------------- accounts


def with_account(etcd: Etcd, *, prefix: str = "/halfmoon/") -> None:
    """Have a server want accounts; one of them may use the keys of a prefix."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    asked(etcd, "/v3/auth/user/add", ROOT)
    asked(etcd, "/v3/auth/role/add", {"name": "root"})
    asked(etcd, "/v3/auth/user/grant", {"user": "root", "role": "root"})
    asked(etcd, "/v3/auth/user/add", ACCOUNT)
    asked(etcd, "/v3/auth/role/add", {"name": "leases"})
    places = {"key": b64encode(prefix.encode()).decode(), "range_end": b64encode(end.encode()).decode()}
    asked(etcd, "/v3/auth/role/grant", {"name": "leases", "perm": {"permType": "READWRITE", **places}})
    asked(etcd, "/v3/auth/user/grant", {"user": "halfmoon", "role": "leases"})
    asked(etcd, "/v3/auth/enable", {})


def test_an_account_with_rights_on_the_prefix_keeps_a_lease(own: Etcd) -> None:
    with_account(own)
    name = new_name()
    place = f"127.0.0.1:{own.port}"
    assert "user name is empty" in reason(from_url(f"etcd://{place}/halfmoon", name).read, WELL_MS)
    said = reason(from_url(f"etcd://halfmoon:s3cwrong@{place}/halfmoon", name).write, b"1", None, WELL_MS)
    assert "refuses the account" in said
    assert "permission denied" in reason(from_url(f"etcd://halfmoon:s3c%2Fret%40@{place}/other", name).read, WELL_MS)
    store = from_url(f"etcd://halfmoon:s3c%2Fret%40@{place}/halfmoon", name)
    version = first(store)
    assert store.read(WELL_MS) == (b"1", version)
    own.kill()  # it forgets its tokens
    own.start()
    version = store.write(b"2", version, WELL_MS) or ""
    token = asked(own, "/v3/auth/authenticate", ROOT)["token"]
    asked(own, "/v3/auth/user/add", {"name": "later", "password": "x"}, token)  # the tokens are of an older revision
    assert store.read(WELL_MS) == (b"2", version)


def test_a_token_that_is_refused_again_is_no_endless_loop(member: Any) -> None:
    tokens = iter("abcdef")

    def answer(path: str) -> tuple[int, bytes]:
        if path == "/v3/auth/authenticate":
            return 200, b'{"token": "%s"}' % next(tokens).encode()
        return 401, b'{"error": "etcdserver: invalid auth token"}'

    busy = member(answer)
    store = from_url(f"etcd://u:s3cret@127.0.0.1:{busy.port}/x", "a/b")
    for _ in range(2):
        assert "invalid auth token" in reason(store.write, b"1", None, WELL_MS)
    assert busy.paths == ["/v3/auth/authenticate", "/v3/kv/txn"] * 2


def test_an_endpoint_at_which_no_token_comes_is_passed_over_even_for_a_write(own: Etcd, member: Any) -> None:
    with_account(own)
    hung = member(lambda path: None)
    store = from_url(f"etcd://halfmoon:s3c%2Fret%40@127.0.0.1:{hung.port},127.0.0.1:{own.port}/halfmoon", new_name())
    assert store.write(b"1", None, 4_000) is not None
    assert hung.paths == ["/v3/auth/authenticate"]


# ---------------------------------------------------------------- TLS and URLs


@pytest.fixture
def readable() -> Iterator[Path]:
    """A directory that the server may read, which runs as another user."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_over_tls_with_certificates_of_both_sides(readable: Path, tmp_path: Path) -> None:
    authority, other = Authority(readable / "ours"), Authority(tmp_path)
    server, client = authority.pair("server"), authority.pair("client")
    Path(server.key).chmod(0o644)
    options = ["--cert-file", server.cert, "--key-file", server.key, "--client-cert-auth", "--trusted-ca-file", authority.ca]
    with running(*options, scheme="https") as etcd:
        url = f"etcds://127.0.0.1:{etcd.port}/x"
        store = lease_store(f"{url}?ca={authority.ca}&cert={client.cert}&key={client.key}", new_name())
        version = first(store)
        assert store.read(WELL_MS) == (b"1", version)
        assert "nobody trusted signed" in reason(lease_store(f"{url}?ca={other.ca}", "a/b").read, WELL_MS)
        assert "certificate" in reason(lease_store(f"{url}?ca={authority.ca}", "a/b").read, WELL_MS)
        assert reason(lease_store(url.replace("etcds", "etcd"), "a/b").read, WELL_MS)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://", "an endpoint is not host:port"),
        ("etcd://a:1,/x", "an endpoint is not host:port"),
        ("etcd://a:0/x", "an endpoint is not host:port"),
        ("etcd://a:99999/x", "an endpoint is not host:port"),
        ("etcd://u:s3c/ret@a:1/x", "an endpoint is not host:port"),
        ("etcd://a b:1/x", "an endpoint is not host:port"),
        ("etcd://[::1/x", "it is no URL"),
        ("etcd://u@a/x", "before @ stand user:password"),
        ("etcd://:s3cret@a/x", "before @ stand user:password"),
        ("etcd://a/x?ca=y", "of etcds:// and nothing else"),
        ("etcds://a/x?password=s3cret", "of etcds:// and nothing else"),
        ("etcd://a/x#s3cret", "of etcds:// and nothing else"),
        ("etcds://a/x?s3cret", "it is no URL"),
        ("etcds://a/x?ca=/nowhere/ca.pem", "TLS CA certificates /nowhere/ca.pem: cannot be read"),
        (f"etcd://{','.join(['a'] * 17)}/x", "17 endpoints"),
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(SettingError) as caught:
        from_url(url, "a/b")
    assert says in str(caught.value)
    assert "s3c" not in str(caught.value)


def test_hosts_may_be_names_and_addresses_with_ports_or_without() -> None:
    store = from_url("etcd://u:s3cret@db.test,10.0.0.1:1234,[::1],[::2]:99/x", "a/b")
    assert store.address == "db.test:2379,10.0.0.1:1234,[::1]:2379,[::2]:99"
    assert "s3cret" not in repr(store)
