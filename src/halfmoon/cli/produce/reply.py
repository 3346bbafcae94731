"""`halfmoon reply`: replies to the requests of a topic: with a text, with the request itself, or with the output of a command."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Annotated

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import check_reader, say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, Topic, duration_ms
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.shared.reading import check_topic
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import ConsumeFrom, StoredMessage

app = App()

POLL_MS = 500
Answer = Callable[[StoredMessage], bytes]


class CommandFailed(HalfmoonError):
    """The command of `halfmoon reply` failed, so that a request got no reply."""


@app.command()
def reply(
    topic: Topic,
    body: Annotated[str | None, Argument(metavar="[BODY]", help="Body of every reply.")] = None,
    echo: Annotated[bool, Option("--echo", help="Reply with the body of the request.")] = False,
    command: Annotated[
        str | None, Option("--command", metavar="COMMAND", help="Reply with this command's output; the request is its input.")
    ] = None,
    command_wait: Annotated[str, Option("--command-wait", metavar="DURATION", help="How long the command may take.")] = "10s",
    count: Annotated[int | None, Option("--count", "-c", min=1, help="Stop after N requests.")] = None,
    group: Annotated[str, Option("--group", "-g", metavar="GROUP", help="Consumer group; its members share the requests.")] = (
        "halfmoon_reply"
    ),
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Reply to the requests of a topic until Ctrl-C, and print a line for each.

    A new group begins with the requests that are sent from now on. Expired requests and messages that are not requests are
    skipped. Exit code 1 if --command fails: the request is consumed, and gets no reply.

    Example: halfmoon reply questions 42

    Example: halfmoon reply questions --command 'bc -l'
    """
    if (body is not None) + echo + (command is not None) != 1:
        raise click.BadParameter("give one of BODY, --echo and --command")
    wait_s = duration_ms(command_wait, "--command-wait", at_least="1ms", at_most="1h") / 1000
    check_topic(nameserver, topic)
    answer, number = _answerer(body, command, wait_s), 0
    with halfmoon.Producer(group=group, nameserver=nameserver) as producer, suppress(KeyboardInterrupt):  # the way to end it
        for request in _requests(nameserver, group, topic):
            _show(request, _outcome(producer, request, answer), as_json=as_json)
            number += 1
            if number == count:
                break


def _requests(nameserver: str, group: str, topic: str) -> Generator[StoredMessage, None, None]:
    """Yield messages as a member of a group, each once its progress is noted; tell when the first can come."""
    ready = False
    with halfmoon.PullConsumer(
        group=group, nameserver=nameserver, auto_commit=False, consume_from=ConsumeFrom.LAST_OFFSET
    ) as consumer:
        consumer.subscribe(topic)
        while True:
            messages = consumer.poll(POLL_MS)
            if not ready and consumer.assignment():
                ready = True
                say(f"halfmoon: waiting for requests of topic {topic} as a member of group {group}", error=True)
            for message in messages:
                consumer.commit({message.queue: message.queue_offset + 1})
                yield message
            check_reader()


def _answerer(body: str | None, command: str | None, wait_s: float) -> Answer:
    if body is not None:
        text = body.encode("utf-8", "surrogateescape")
        return lambda request: text
    return (lambda request: request.body) if command is None else (lambda request: _output(command, request.body, wait_s))


def _outcome(producer: halfmoon.Producer, request: StoredMessage, answer: Answer) -> str:
    """Reply to one request; return the outcome in words. Raises CommandFailed."""
    age_ms, lives_ms = time.time_ns() // 1_000_000 - request.born_ms, request.properties.get("TTL", "")
    if lives_ms.isdecimal() and age_ms > int(lives_ms[:12]):
        return "skipped: the sender no longer waits for a reply"
    try:
        producer.reply(request, answer(request))
    except CommandFailed:
        raise
    except UsageError as exc:
        return f"left out: {exc}"
    except HalfmoonError as exc:
        return f"no reply: {exc}"
    return "replied"


def _output(command: str, body: bytes, wait_s: float) -> bytes:
    try:
        ran = subprocess.run(shlex.split(command), input=body, stdout=subprocess.PIPE, timeout=wait_s, check=True)
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        raise CommandFailed(f"the command of --command failed: {exc}") from exc
    return ran.stdout.removesuffix(b"\n")


def _show(request: StoredMessage, outcome: str, *, as_json: bool) -> None:
    if as_json:
        show_json({"msg_id": request.msg_id, "topic": request.topic, "outcome": outcome})
    else:
        say(f"{request.msg_id} {outcome}")
