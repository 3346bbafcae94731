"""Errors of Halfmoon, as one tree, and the response codes of the protocol.

Five branches: the caller's mistake (`UsageError`), bytes that break the protocol (`PeerError`), the network
(`NetworkError`), a broker's or name server's refusal (`BrokerError`, one class per response code that callers tell
apart), and the disk (`StoreError`). Each carries its facts as attributes; ``retry`` says whether another try,
at another broker or later, may help. Nothing here does any work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar


class ResponseCode(IntEnum):
    """Response codes. Follows ResponseCode and RemotingSysResponseCode (RocketMQ 4.7.1 to 5.3.3)."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    TOPIC_RECREATED = 31017
    """Halfmoon's own; answered only to clients that name the birth of the topic."""


def code_text(code: int) -> str:
    """Return a response code with its name, for logs and errors: ``17 TOPIC_NOT_EXIST``."""
    try:
        return f"{code} {ResponseCode(code).name}"
    except ValueError:
        return str(code)


class HalfmoonError(Exception):
    """Root of all errors that Halfmoon raises on purpose."""

    retry: bool = False


# ---------------------------------------------------------------- the caller


class UsageError(HalfmoonError):
    """The caller made a mistake: a wrong argument, state or setting."""


class MessageIllegal(UsageError):
    """The message cannot be sent as it is. ``code`` is 13, as the original reports it."""

    code = int(ResponseCode.MESSAGE_ILLEGAL)


class SettingError(UsageError):
    """A setting is unknown or its value does not fit; the text names it and the nearest right one."""


class NotRunning(UsageError):
    """The producer, consumer or admin client was not started, or is closed."""


# ---------------------------------------------------------------- the bytes


class PeerError(HalfmoonError):
    """The other side sent bytes that break the protocol; the connection cannot go on."""


class BadFrame(PeerError):
    """A frame's lengths do not fit, or it is larger than allowed."""


class BadHeader(PeerError):
    """A frame's header does not decode, or a field is missing or out of range."""


class BadMessage(PeerError):
    """Bytes that should be a stored message are not one."""


# ---------------------------------------------------------------- the network


class NetworkError(HalfmoonError):
    """The other side could not be reached or did not answer. ``address`` says which."""

    retry = True

    def __init__(self, text: str, address: str = "") -> None:
        super().__init__(text)
        self.address = address


class ConnectFailed(NetworkError):
    """No connection could be made. ``refused``: nobody listens there."""

    refused = False


class ConnectionLost(NetworkError):
    """The connection broke before the answer came; the request may have been carried out."""


class RequestTimeout(NetworkError):
    """No answer within the time given; the request may have been carried out."""


class NotNameServer(NetworkError):
    """A broker was given as a name server."""

    retry = False

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is a broker, not a name server", address)


class NoNameServerAnswers(NetworkError):
    """None of the name servers could be asked. The text names each with the reason; ``address`` has all, joined by ``;``."""

    def __init__(self, errors: dict[str, NetworkError]) -> None:
        reasons = "; ".join(str(error) for error in errors.values())
        remedy = "check the address (port 9876 by default), that a name server runs there, and whether it requires TLS"
        super().__init__(f"no name server answers: {reasons}; {remedy}", ";".join(errors))


class LeaseUnavailable(NetworkError):
    """The record of a lease could not be read, or it is not known whether it was written. ``address`` says where it is kept."""


class TooManyRequests(NetworkError):
    """The bound on requests in flight is reached, or the time budget was spent before the request could leave."""

    retry = False


# ---------------------------------------------------------------- routes and sends


class NoNameServer(UsageError):
    """No name server address is set. ``code`` is 10004, as the original reports it."""

    code = 10004


class NoRoute(HalfmoonError):
    """No route is known for the topic. ``code`` is 10005, as the original reports it.

    ``reason`` is None where the name servers said so, and else says why they could not be asked, or why their answer is of no use.
    ``near`` are names of topics that are there and are spelt alike, where somebody looked for them.
    """

    retry = True
    code = 10005

    def __init__(self, topic: str, reason: object = None, near: tuple[str, ...] = ()) -> None:
        text = f"No route info of this topic: {topic}" if reason is None else f"topic {topic} cannot be looked up: {reason}"
        super().__init__(text + (f"; did you mean {' or '.join(map(repr, near))}?" if near else ""))
        self.topic, self.reason, self.near = topic, reason, near


class NoMaster(NoRoute):
    """The topic is there, and no broker of it has a master now; others of its members are registered, and may take over."""


class NotWritable(NoRoute):
    """The topic is there, and no broker of it lets anybody write: its permission says so, or it has no queues to write to."""

    retry = False

    def __init__(self, topic: str, brokers: Sequence[str]) -> None:
        where = ", ".join(brokers)
        HalfmoonError.__init__(self, f"topic {topic} may not be written to: its permission on {where}, see `halfmoon topic show`")
        self.topic, self.reason, self.near = topic, "it may not be written to", ()


class SendFailed(HalfmoonError):
    """Every attempt of a send failed. Attributes name the topic, the brokers tried, the cost in ms and the last cause's code.

    ``retry`` is that of the last cause where each broker of the topic refused it; else True. ``may_be_stored``: an attempt got no
    answer, so nobody knows whether the message is stored.
    """

    retry = True

    def __init__(
        self, topic: str, brokers: list[str], cost_ms: int, code: int, cause: BaseException | None = None, *, retry: bool = False,
        may_be_stored: bool = False,
    ) -> None:  # fmt: skip
        tried = f"{len(brokers)} attempt{'' if len(brokers) == 1 else 's'} in {cost_ms} ms, at {', '.join(brokers)}"
        reason = failure_text(brokers[-1] if brokers else "", cause)
        unknown = "; without an answer nobody knows whether it is stored" if may_be_stored else ""
        super().__init__(f"Could not send to {topic}: {reason} ({tried}){unknown}")
        self.may_be_stored = may_be_stored
        self.topic, self.brokers, self.cost_ms, self.code, self.cause = topic, brokers, cost_ms, code, cause
        self.retry = retry or not isinstance(cause, HalfmoonError) or cause.retry


def failure_text(broker: str, cause: BaseException | None) -> str:
    """Return why a broker did not store a message, as words."""
    if cause is None:
        return "no broker was tried" if not broker else f"{broker} did not store it"
    if isinstance(cause, ConnectFailed) and cause.refused:
        return f"{broker} refused the connection"
    return str(cause) if isinstance(cause, AccessRefused) else f"{broker}: {text_of(cause)}"


def text_of(error: BaseException) -> str:
    """Return an error for people: what a broker said, with the code, or how to get access to it."""
    if isinstance(error, AccessRefused):
        return error.advice
    return f"{error.remark or 'refused'} (code {code_text(error.code)})" if isinstance(error, BrokerError) else str(error)


def kind_of(error: BaseException) -> str:
    """Return the kind of an error in JSON: the name of its class, without the underscore that keeps it apart from Python's own."""
    return type(error).__name__.strip("_")


class HalfRolledBack(HalfmoonError):
    """A half message was stored, but a promise of its broker (flush, slave) was not kept in time: it was rolled back.

    The local transaction did not run. ``result`` says what the broker answered.
    """

    retry = True

    def __init__(self, result: object, status: str) -> None:
        super().__init__(
            f"the half message was rolled back, because its broker answered {status}; the local transaction did not run"
        )
        self.result = result


class PartlyDone(HalfmoonError):
    """A change was made at some servers and failed at others. To repeat it is safe.

    ``done`` has what the servers answered that made it, by name, and ``failed`` the errors of the others. Where an answer got lost,
    the change may be made all the same.
    """

    def __init__(self, done: Mapping[str, Any], failed: Mapping[str, HalfmoonError]) -> None:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        super().__init__(f"done at {', '.join(done)}, but not at {reasons}; repeat it once this is mended")
        self.done, self.failed = done, failed
        self.retry = any(error.retry for error in failed.values())


class OffsetIllegal(UsageError):
    """A seek outside [min, max] of the queue."""


# ---------------------------------------------------------------- refusals


class BrokerError(HalfmoonError):
    """A broker or name server answered with a code other than success.

    A subclass that names a code registers itself; `broker_error` builds the right one.
    """

    code: int = 1
    by_code: ClassVar[dict[int, type[BrokerError]]] = {}

    def __init_subclass__(cls, code: int | None = None, retry: bool = False) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code, cls.retry = code, retry
            BrokerError.by_code[code] = cls

    def __init__(self, remark: str | None = None, address: str = "", code: int | None = None) -> None:
        if code is not None:
            self.code = code
        self.remark, self.address = remark or "", address
        super().__init__(f"CODE: {code_text(self.code)}  DESC: {self.remark}" + (f"  BROKER: {address}" if address else ""))


def broker_error(code: int, remark: str | None, address: str = "") -> BrokerError:
    """Return the error for a response code: its own class where there is one, else `BrokerError`."""
    if code == 1 and remark is not None and remark.startswith(ACCESS_REFUSED):
        return AccessRefused(remark, address, code)
    return BrokerError.by_code.get(code, BrokerError)(remark, address, code)


def settled_already(message_id: str, *, expired: bool, address: str = "") -> BrokerError:
    """Return the refusal (4) of a half message that is sent again when its transaction was rolled back or expired."""
    what = (
        f"the half message {message_id} expired: resume it"
        if expired
        else f"the transaction of message {message_id} was rolled back: send it under a new id"
    )
    return BrokerError(what, address, int(ResponseCode.TRANSACTION_FAILED))


ACCESS_REFUSED = "org.apache.rocketmq.acl.common.AclException: "
"""Beginning of the remark of a request that access control refuses."""


class AccessRefused(BrokerError):
    """Access control: no account, a wrong secret, or no permission. The code is 1, as of other failures; only the remark tells."""

    def __init__(self, remark: str | None = None, address: str = "", code: int | None = None) -> None:
        super().__init__(remark, address, code)
        if address:
            self.args = (f"{self.advice} ({self})",)

    @property
    def advice(self) -> str:
        """Return the refusal and the next step."""
        where, reason = self.address or "the broker", self.remark.removeprefix(ACCESS_REFUSED).partition(", org.apache")[0]
        if reason.startswith("No accessKey is configured"):
            return (
                f"{where} requires an account: access_key= and secret_key= in Python, --credentials FILE for commands, or "
                "HALFMOON_ACCESS_KEY and HALFMOON_SECRET_KEY in the environment"
            )
        return f"{where} refused access: {reason} (see halfmoon docs access)"


class SystemError_(BrokerError, code=1, retry=True):
    """The broker failed in a way it has no code for."""


class SystemBusy(BrokerError, code=2, retry=True):
    """The broker sheds load; nothing was stored."""


class RequestNotSupported(BrokerError, code=3):
    """The broker does not know the request."""


class MessageRefused(BrokerError, code=13):
    """Body or properties are too large or malformed."""


class ServiceNotAvailable(BrokerError, code=14, retry=True):
    """The store takes no writes now: shut down, disk full, a slave, or a failed sync."""


class NoPermission(BrokerError, code=16):
    """Topic, group or broker does not allow this. Another broker may; ``retry``: the broker is closed as a whole, for a while."""

    def __init__(self, remark: str | None = None, address: str = "", code: int | None = None) -> None:
        super().__init__(remark, address, code)
        self.retry = self.remark.startswith("the broker[")


class TopicNotFound(BrokerError, code=17, retry=True):
    """The topic is unknown and may not be created."""


class QueryNotFound(BrokerError, code=22):
    """No such key, offset or value."""


class SubscriptionParseFailed(BrokerError, code=23):
    """The filter expression does not parse."""


class SubscriptionNotFound(BrokerError, code=24):
    """The broker knows no such consumer or no subscription of it to the topic."""


class SubscriptionNotLatest(BrokerError, code=25):
    """The broker holds an older subscription than the request names."""


class GroupNotFound(BrokerError, code=26):
    """The consumer group is unknown and may not be created."""


class InvalidParameter(BrokerError, code=29):
    """A field of the request is out of range."""


class NotInUnit(BrokerError, code=205, retry=True):
    """The producer is not in the broker's unit."""


class ConsumerNotOnline(BrokerError, code=206):
    """No member of the consumer group is connected."""


class FlowControl(BrokerError, code=215, retry=True):
    """Pulls are throttled."""


class IllegalOperation(BrokerError, code=604):
    """The request is not possible for this message (any more): it is delivered, cancelled or unknown."""


class GoAway(BrokerError, code=1500, retry=True):
    """The server is about to close; ask another or reconnect."""


class TopicRecreated(BrokerError, code=31017):
    """The topic was deleted and created again: the offset is of the old one. Halfmoon's own."""


# ---------------------------------------------------------------- the disk


class StoreError(HalfmoonError):
    """The store cannot carry out a request."""


class StoreLocked(StoreError):
    """Another process uses the directory."""


class CorruptRecord(StoreError):
    """Bytes of the log are not the record that an index says is there."""

    def __init__(self, physical_offset: int, reason: str) -> None:
        super().__init__(f"record at {physical_offset}: {reason}")
        self.physical_offset, self.reason = physical_offset, reason


class StoreNotWritable(StoreError):
    """The store refuses writes; ``reason`` says why (disk full, failed sync, closed)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
