"""The part of Kubernetes's API that a lease needs, as its reference documents it, in this process: Leases of one namespace.

Follows "Lease v1 coordination.k8s.io" and "Kubernetes API Concepts" of Kubernetes 1.31: read, create and replace, optimistic
locking by ``resourceVersion``, errors as objects of kind Status. What a request has wrong is refused, and noted in `faults`.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.authority import Pair
from tests.interop.process import free_port

NAMESPACES = ("shop",)
_LEASES = re.compile(r"/apis/coordination\.k8s\.io/v1/namespaces/([a-z0-9-]+)/leases(?:/([a-z0-9.-]+))?")
_NOTE = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SPEC = {
    "holderIdentity": str, "leaseDurationSeconds": int, "acquireTime": str, "renewTime": str, "leaseTransitions": int,
    "preferredHolder": str, "strategy": str,
}  # fmt: skip
_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 422: "Invalid"}


class Refused(Exception):
    """The API answers with an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class KubernetesApi:
    """A server of HTTPS. Threads, one for each connection, answer while `answers` is set."""

    def __init__(self, certificate: Pair) -> None:
        self.port, self.token = free_port(), ""
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.faults: list[str] = []
        """What requests had wrong that a client of it should never send."""
        self.calls: list[tuple[str, str]] = []
        """Verbs and paths, in their order."""
        self.failures: list[Refused] = []
        """What the next requests are answered, before anything else."""
        self.answers = threading.Event()
        self.answers.set()
        self._revision = 100
        self._lock = threading.Lock()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)
        self._server: ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()

    def start(self) -> None:
        """Listen."""
        api = self

        class Handler(_Handler):
            owner = api

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Close the port, and break all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def answer(self, verb: str, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the object that a request is answered."""
        with self._lock:
            self.calls.append((verb, path))
            try:
                if self.failures:
                    raise self.failures.pop(0)
                return self._answer(verb, path, headers, body)
            except Refused as exc:
                if exc.code in (400, 405, 415, 422):
                    self.faults.append(str(exc))
                status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(exc)}
                return exc.code, {**status, "reason": exc.reason, "code": exc.code}

    def _answer(self, verb: str, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        if headers.get("Authorization") != f"Bearer {self.token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        if "application/json" not in headers.get("Accept", ""):
            raise Refused(400, "BadRequest", "only JSON is spoken here")
        found = _LEASES.fullmatch(path)
        if found is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        namespace, name = found.groups()
        if verb == "GET" and name and not body:
            if (namespace, name) not in self.objects:
                raise _missing(name)
            return 200, self.objects[namespace, name]
        if not (verb == "PUT" if name else verb == "POST"):
            raise Refused(405, "MethodNotAllowed", f"{verb} {path}")
        if headers.get("Content-Type") != "application/json":
            raise Refused(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
        lease = _valid(json.loads(body), namespace, name)
        if namespace not in NAMESPACES:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        return self._replaced(lease, namespace, name) if name else self._created(lease, namespace)

    def _created(self, lease: dict[str, Any], namespace: str) -> tuple[int, dict[str, Any]]:
        name = lease["metadata"]["name"]
        if lease["metadata"].get("resourceVersion"):
            raise Refused(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if (namespace, name) in self.objects:
            raise Refused(409, "AlreadyExists", f'leases.coordination.k8s.io "{name}" already exists')
        return 201, self._kept(lease, namespace, name)

    def _replaced(self, lease: dict[str, Any], namespace: str, name: str) -> tuple[int, dict[str, Any]]:
        if (current := self.objects.get((namespace, name))) is None:
            raise _missing(name)
        given = lease["metadata"].get("resourceVersion")
        if not given:
            raise Refused(422, "Invalid", "metadata.resourceVersion: Invalid value: must be specified for an update")
        if given != current["metadata"]["resourceVersion"]:
            text = "the object has been modified; please apply your changes to the latest version and try again"
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on leases.coordination.k8s.io "{name}": {text}')
        return 200, self._kept(lease, namespace, name)

    def _kept(self, lease: dict[str, Any], namespace: str, name: str) -> dict[str, Any]:
        self._revision += 7
        lease["metadata"]["resourceVersion"] = str(self._revision)
        lease["metadata"].setdefault("uid", f"uid-{self._revision}")
        self.objects[namespace, name] = lease
        return lease


def _missing(name: str) -> Refused:
    return Refused(404, "NotFound", f'leases.coordination.k8s.io "{name}" not found')


def _valid(lease: Any, namespace: str, name: str | None) -> dict[str, Any]:
    """Return the object of a request. Raises Refused: it is no valid Lease of this path."""
    metadata, spec = lease.get("metadata"), lease.get("spec")
    if (lease.get("apiVersion"), lease.get("kind")) != ("coordination.k8s.io/v1", "Lease") or lease.keys() - _PARTS:
        raise Refused(400, "BadRequest", "no Lease of coordination.k8s.io/v1")
    if metadata.get("namespace") != namespace or (name or metadata["name"]) != metadata["name"]:
        raise Refused(400, "BadRequest", "the name of the object does not match the name on the URL")
    notes = metadata.get("annotations", {})
    if not all(_NOTE.fullmatch(key) and isinstance(value, str) for key, value in notes.items()):
        raise Refused(422, "Invalid", f"metadata.annotations: Invalid value: {[*notes]}")
    if sum(len(key) + len(value.encode()) for key, value in notes.items()) > 256 * 1024:
        raise Refused(422, "Invalid", "metadata.annotations: Too long: must have at most 262144 bytes")
    if not all(type(value) is _SPEC.get(key) for key, value in spec.items()):
        raise Refused(400, "BadRequest", f"spec: {spec}")
    if spec.get("holderIdentity") == "" or not 0 <= spec.get("leaseTransitions", 0) < 2**31:
        raise Refused(422, "Invalid", f"spec: Invalid value: {spec}")
    return dict(lease)


_PARTS = {"apiVersion", "kind", "metadata", "spec"}


class _Handler(BaseHTTPRequestHandler):
    owner: KubernetesApi
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.owner._open.add(self.request)
        self._plain = self.request
        self.request.settimeout(30)
        self.request = self.owner._context.wrap_socket(self.request, server_side=True)
        super().setup()

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def finish(self) -> None:
        self.owner._open.discard(self._plain)
        with suppress(OSError):
            super().finish()

    def log_message(self, *_said: Any) -> None:
        """Log nothing."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.owner.answers.wait(60)
        status, found = self.owner.answer(self.command, self.path, self.headers, body)
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve
