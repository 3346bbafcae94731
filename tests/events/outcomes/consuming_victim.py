"""A consumer in a process of its own whose effects lie in a database, with the ids of processed events in the same transaction.

Run as a program it consumes until SIGTERM (``python -m tests.events.outcomes.consuming_victim …``); tests kill it before that.
"""

from __future__ import annotations

import argparse
from collections import Counter

from sqlalchemy import Engine, String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from halfmoon.events import ConsumerContext, Event, run
from halfmoon.events.consuming.on import Handler
from halfmoon.events.dedup import create_tables, ledger_of


class Base(DeclarativeBase):
    """The table of effects."""


class Effect(Base):
    """What an event brought about; two rows of one event are two effects."""

    __tablename__ = "effects"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    event_id: Mapped[str] = mapped_column(String(64))


def make_effects(engine: Engine) -> None:
    """Make the tables of effects and of processed events."""
    Base.metadata.create_all(engine)
    create_tables(ledger_of(sessionmaker(engine)).provider)


def effects(engine: Engine) -> Counter[str]:
    """Return how many effects each event had, by id."""
    with Session(engine) as session:
        return Counter(session.scalars(select(Effect.event_id)))


def main() -> None:
    """Consume until SIGTERM."""
    from tests.events.outcomes.shop import CODE

    parser = argparse.ArgumentParser()
    parser.add_argument("nameserver")
    parser.add_argument("url")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    options = parser.parse_args()
    made = sessionmaker(create_engine(options.url))

    def take_effect(event: Event, context: ConsumerContext) -> None:
        context.session.add(Effect(event_id=event.id))

    handler = Handler(group=options.group, topic=options.topic, code=CODE, function=take_effect, dedup=made)
    soon = {"rebalance_ms": 200, "route_refresh_ms": 200, "persist_offsets_ms": 200, "threads": 4}
    run(handler, nameserver=options.nameserver, ready=lambda _: print("ready", flush=True), **soon)


if __name__ == "__main__":
    main()
