"""`halfmoon request`: sends a message, and prints what a consumer replies."""

from __future__ import annotations

import sys
from typing import Annotated

import halfmoon
from halfmoon.cli.consume.formats import BODIES, MessageFormat
from halfmoon.cli.produce.command import Keys, Properties
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.bodies import BodyBudget
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, Topic, duration_ms, pairs
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.shared.reading import check_topic
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.model import Message

app = App()


@app.command()
def request(
    topic: Topic,
    body: Annotated[str, Argument(metavar="BODY", help="Body of the request; - for standard input.")],
    tag: Annotated[str | None, Option("--tag", help="Tag of the request.")] = None,
    key: Keys = None,
    properties: Properties = None,
    wait: Annotated[str, Option("--wait", metavar="DURATION", help="How long to wait for the reply, sending included.")] = "10s",
    group: Annotated[str, Option("--group", "-g", metavar="GROUP", help="Producer group.")] = "halfmoon_request",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Send a request, wait for the reply of a consumer, and print its body.

    Any consumer that replies in the manner of RocketMQ 4.6 or newer will do: halfmoon reply, Java, Go. Exit code 1 if no reply
    comes.

    Example: halfmoon request questions 'what is 6 times 7?' --wait 5s
    """
    asked = Message(
        topic, sys.stdin.buffer.read(BODY_BYTES_MAX + 1) if body == "-" else body.encode("utf-8", "surrogateescape"),
        tag=tag, keys=key or (), properties=pairs(properties or [], "--property"),
    )  # fmt: skip
    wait_ms = duration_ms(wait, "--wait", at_least="1ms", at_most="1h")
    check_topic(nameserver, topic)
    with halfmoon.Producer(group=group, nameserver=nameserver) as producer:
        reply = producer.request(asked, timeout_ms=wait_ms)
    bodies = BodyBudget()
    if as_json:
        show_json(bodies.facts(reply))
    else:
        MessageFormat(BODIES).show(reply, bodies)
