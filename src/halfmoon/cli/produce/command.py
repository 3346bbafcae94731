"""`halfmoon produce`: sends messages from arguments, a file or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, Topic, duration_ms, pairs, time_ms
from halfmoon.cli.shared.output import report, show_json
from halfmoon.errors import HalfmoonError
from halfmoon.limits import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX
from halfmoon.model import Message, SendResult, SendStatus

app = App()

NOT_KEPT = {
    SendStatus.FLUSH_DISK_TIMEOUT: "the broker's disk was too slow to say that it has it",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "no slave has copied it in time",
    SendStatus.SLAVE_NOT_AVAILABLE: "no slave is there to copy it",
}
"""Promises of a broker that were not kept, by the status of the send."""


Bodies = Annotated[
    list[str] | None,
    Argument(metavar="[BODY]...", help="Message bodies; without any, or with -, one message per line of standard input."),
]
File = Annotated[Path | None, Option("--file", exists=True, dir_okay=False, help="Read one message per line from this file.")]
Whole = Annotated[bool, Option("--whole", help="Send the whole file (or standard input) as one message.")]
Keys = Annotated[list[str] | None, Option("--key", help="A key to find the messages by; may be repeated.")]
OrderKey = Annotated[
    str | None, Option("--order-key", metavar="KEY", help="Messages with the same order key go to the same queue.")
]
KeyDelimiter = Annotated[
    str | None,
    Option("--key-delimiter", metavar="TEXT", help="Split each line at this text into key and body; \\t is a tab."),
]
Properties = Annotated[list[str] | None, Option("--property", "-p", metavar="NAME=VALUE", help="A property; may be repeated.")]
Delay = Annotated[str | None, Option("--delay", metavar="DURATION", help="Deliver after this delay: 10s, 5m, 3d.")]
DeliverAt = Annotated[str | None, Option("--deliver-at", metavar="TIME", help="Deliver at a time, ISO 8601 or ms.")]
DelayLevel = Annotated[
    int,
    Option("--delay-level", min=0, metavar="LEVEL", help="Deliver after the delay of this level; works with every broker."),
]


@app.command()
def produce(
    topic: Topic,
    bodies: Bodies = None,
    file: File = None,
    whole: Whole = False,
    tag: Annotated[str | None, Option("--tag", help="Tag of the messages.")] = None,
    key: Keys = None,
    key_delimiter: KeyDelimiter = None,
    order_key: OrderKey = None,
    properties: Properties = None,
    delay: Delay = None,
    deliver_at: DeliverAt = None,
    delay_level: DelayLevel = 0,
    count: Annotated[int, Option("--count", "-c", min=1, help="Send each message N times.")] = 1,
    group: Annotated[str, Option("--group", "-g", metavar="GROUP", help="Producer group.")] = "halfmoon_produce",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Send messages, and print a line for each one that is stored.

    Stops with exit code 1 at the first message that was not stored, or not flushed or replicated as configured.

    Example: halfmoon produce --topic orders --tag paid --key o-1 '{"order": 1}'

    Example: tail -f orders.log | halfmoon produce orders - --key-delimiter :
    """
    named = pairs(properties or [], "--property")
    delay_s = None if delay is None else duration_ms(delay, "--delay") / 1000
    at_ms = None if deliver_at is None else time_ms(deliver_at)
    sent = 0
    with halfmoon.Producer(group=group, nameserver=nameserver) as producer:
        for line_key, body in _repeated(_keyed(_bodies(bodies, file, whole=whole), key_delimiter), count):
            keys = [*(key or ()), *([line_key] if line_key else [])]
            message = Message(topic, body, tag=tag, keys=keys, properties=named, delay_level=delay_level)
            message.delay, message.deliver_at = delay_s, at_ms
            result = producer.send(message, key=order_key)
            sent += 1
            _show(result, as_json=as_json)
            if result.status is not SendStatus.SEND_OK:
                say(f"halfmoon: the message is stored, and consumers get it; but {NOT_KEPT[result.status]}", error=True)
                raise click.exceptions.Exit(1)
    if not sent:
        raise click.exceptions.Exit(
            report(HalfmoonError("nothing to send: give a BODY, --file, or lines on standard input"), as_json=as_json)
        )


def _show(result: SendResult, *, as_json: bool) -> None:
    queue = result.queue
    if not as_json:
        say(f"{result.status.name} {result.msg_id} {queue.broker_name}/{queue.queue_id} at {result.queue_offset}")
        return
    facts = {
        "status": result.status.name,
        "msg_id": result.msg_id,
        "offset_msg_id": result.offset_msg_id,
        "broker": queue.broker_name,
        "queue_id": queue.queue_id,
        "queue_offset": result.queue_offset,
    }
    show_json({**facts, "recall_handle": result.recall_handle} if result.recall_handle else facts)


def _repeated(bodies: Iterable[tuple[str, bytes]], count: int) -> Iterator[tuple[str, bytes]]:
    return (body for body in bodies for _ in range(count))


def _keyed(bodies: Iterable[bytes], delimiter: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield the key (empty: none) and the body of each line. Raises click.BadParameter for one without the delimiter."""
    between = (delimiter or "").replace("\\t", "\t").encode("utf-8", "surrogateescape")
    if delimiter is not None and not between:
        raise click.BadParameter("--key-delimiter must not be empty")
    for number, body in enumerate(bodies, 1):
        if not between:
            yield "", body
            continue
        key, found, rest = body.partition(between)
        if not found:
            raise click.BadParameter(
                f"message {number} does not contain the key delimiter {delimiter!r}; the messages before it were sent"
            )
        yield key.decode("utf-8", "surrogateescape"), rest


def _bodies(arguments: list[str] | None, file: Path | None, *, whole: bool) -> Iterator[bytes]:
    if arguments and file:
        raise click.BadParameter("give bodies or --file, not both")
    if arguments and arguments != ["-"]:
        yield from (text.encode("utf-8", "surrogateescape") for text in arguments)
    elif file is not None:
        with file.open("rb") as source:
            yield from _read(source, whole=whole)
    else:
        yield from _read(sys.stdin.buffer, whole=whole)


def _read(source: BinaryIO, *, whole: bool) -> Iterator[bytes]:
    """Yield one body, or one a line (empty lines are left out). The producer refuses a body that is too long for brokers."""
    # One byte over, whatever ends the line, and behind whatever key: the producer refuses it, or the key.
    limit = BODY_BYTES_MAX + 2 + PROPERTIES_BYTES_MAX
    if whole:
        yield source.read(limit)
        return
    while line := source.readline(limit):
        if body := line.rstrip(b"\r\n"):
            yield body
