"""Lease in Kubernetes: an annotation of a Lease of ``coordination.k8s.io/v1``, replaced where its ``resourceVersion`` is the same.

The account is the pod's own. Its token and the authority of the API's certificate are read at each call, for they are rotated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from halfmoon.errors import LeaseUnavailable, SettingError
from halfmoon.ports import Stored
from halfmoon.runtime.leases.addresses import Resolver
from halfmoon.runtime.leases.deadline import Deadline
from halfmoon.runtime.leases.http import Endpoint, Reply, Request, exchange
from halfmoon.runtime.leases.record import checked, holder_and_epoch, line, stored
from halfmoon.runtime.tls import ClientTls

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory in which a pod finds the files of its account."""
RECORD, PAIR = "halfmoon/record", "halfmoon/pair"
"""Annotations: the record, and the brokers whose it is."""

_API = "coordination.k8s.io/v1"
_TOKEN_BYTES_MAX = 64 * 1024
_NAME = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_URL = re.compile(rf"kubernetes://({_NAME})/({_NAME}(?:\.{_NAME})*)")


def from_url(url: str, name: str) -> KubernetesLease:
    """Return the lease of ``kubernetes://namespace/name``. Raises SettingError: malformed, or this is no pod of Kubernetes."""
    found = _URL.fullmatch(url)
    if found is None or len(found[2]) > 253:
        raise SettingError(
            "lease: the URL of Kubernetes is malformed: it is kubernetes://namespace/name, of the characters a-z, 0-9, - and . (in"
            " the name)"
        )
    return KubernetesLease(found[1], found[2], name)


class KubernetesLease:
    """Lease in an object of Kubernetes; a `halfmoon.ports.LeaseStore`.

    ``kubectl get lease`` shows the record's ``holder`` as holder, and its ``epoch`` as ``leaseTransitions``. What others write into
    the object (labels, owners) stays.
    """

    def __init__(
        self, namespace: str, name: str, pair: str, *, account: Path = ACCOUNT, environment: Mapping[str, str] = os.environ
    ) -> None:
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (port.isascii() and port.isdigit() and len(port) < 6):
            raise SettingError("lease: KUBERNETES_SERVICE_HOST and _PORT are not set: this program runs in no pod of Kubernetes")
        self._endpoint, self._account = Endpoint(host, int(port)), account
        self._namespace, self._name, self._pair = namespace, name, pair
        self._path = f"/apis/{_API}/namespaces/{quote(namespace, safe='')}/leases"
        self._resolver = Resolver()
        self.address = f"{self._endpoint}/{namespace}/{name}"
        self._known: dict[str, Any] = {}
        """Object as it was last read or written."""

    def read(self, timeout_ms: int) -> Stored | None:
        """Return the newest record; None: there is none. Raises LeaseUnavailable."""
        reply = self._call("GET", self._own_path, None, timeout_ms)
        if _is_refused(reply, 404, "NotFound"):
            return None
        metadata = self._taken(reply, 200)
        notes = metadata.get("annotations")
        notes = notes if isinstance(notes, dict) else {}
        if not isinstance(text := notes.get(RECORD), str):
            raise self._unavailable(f"the Lease has no annotation {RECORD}, so others made it: remove it, or use another name")
        if (pair := notes.get(PAIR)) != self._pair:
            raise self._unavailable(f"the Lease belongs to the brokers {line(str(pair))}, not {self._pair}: use another name")
        return stored(text.encode(errors="replace"), metadata["resourceVersion"], self.address)

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        """Replace the record; see `halfmoon.ports.LeaseStore.write`."""
        body = self._object(checked(text), expected)
        if expected == "":  # would replace any version
            return None
        if expected is None:
            reply = self._call("POST", self._path, body, timeout_ms)
            if _is_refused(reply, 409, "AlreadyExists"):
                return None
        else:
            reply = self._call("PUT", self._own_path, body, timeout_ms)
            if _is_refused(reply, 409, "Conflict") or _is_refused(reply, 404, "NotFound"):
                return None
        version: str = self._taken(reply, 201 if expected is None else 200)["resourceVersion"]
        return version

    def close(self) -> None:
        """Do nothing: each call has a connection of its own."""

    @property
    def _own_path(self) -> str:
        return f"{self._path}/{quote(self._name, safe='')}"

    def _object(self, record: str, expected: str | None) -> dict[str, Any]:
        """Return the object to write: that which was read, if it is of the version expected, with another record."""
        known = self._known if expected is not None and _metadata(self._known).get("resourceVersion") == expected else {}
        metadata = {**_metadata(known), "name": self._name, "namespace": self._namespace}
        notes = metadata.get("annotations")
        metadata["annotations"] = {**(notes if isinstance(notes, dict) else {}), RECORD: record, PAIR: self._pair}
        if expected is not None:
            metadata["resourceVersion"] = expected
        holder, epoch = holder_and_epoch(record.encode())
        spec = known.get("spec")
        spec = dict(spec) if isinstance(spec, dict) else {}
        for key, value in (("holderIdentity", holder), ("leaseTransitions", epoch)):
            spec.pop(key, None)
            if value is not None:
                spec[key] = value
        return {**known, "apiVersion": _API, "kind": "Lease", "metadata": metadata, "spec": spec}

    def _taken(self, reply: Reply, status: int) -> dict[str, Any]:
        """Return the metadata of the object in a reply, which is kept. Raises LeaseUnavailable: the reply has none."""
        if reply.status != status:
            raise self._unavailable(f"the API answers {reply.status}: {_said(reply)}")
        metadata = _metadata(reply.body)
        if not isinstance(metadata.get("resourceVersion"), str):
            raise self._unavailable("the reply is none of Kubernetes's API")
        self._known = reply.body
        return metadata

    def _call(self, method: str, path: str, body: dict[str, Any] | None, timeout_ms: int) -> Reply:
        deadline = Deadline(timeout_ms, self.address)
        try:
            with (self._account / "token").open("rb") as file:
                token = file.read(_TOKEN_BYTES_MAX).decode("ascii", "replace").strip()
            context = ClientTls(ca=str(self._account / "ca.crt")).context()
        except OSError as exc:
            raise self._unavailable(f"the token of the pod's account cannot be read: {exc.strerror}") from None
        except SettingError as exc:
            raise self._unavailable(str(exc)) from None
        if not (token.isascii() and token.isprintable()):
            raise self._unavailable("the token of the pod's account is damaged")
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Content-Type": "application/json"}
        endpoint = self._endpoint._replace(context=context)
        return exchange(endpoint, Request(method, path, headers, body), self._resolver, deadline, deadline)

    def _unavailable(self, reason: str) -> LeaseUnavailable:
        return LeaseUnavailable(f"Kubernetes at {self.address}: {reason}", self.address)


def _metadata(found: dict[str, Any]) -> dict[str, Any]:
    metadata = found.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _is_refused(reply: Reply, status: int, reason: str) -> bool:
    """Whether the API itself, and not something before it, refuses for a reason."""
    return reply.status == status and reply.body.get("kind") == "Status" and reply.body.get("reason") == reason


def _said(reply: Reply) -> str:
    said = reply.body.get("message")
    return line(said) if isinstance(said, str) else "no reason"
