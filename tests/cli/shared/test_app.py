"""How commands are declared: topics and groups as words or options, and one option for an empty result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from halfmoon.cli.shared.app import App
from halfmoon.cli.shared.options import Group, Groups, OneTopic, Topic, Topics

app = App()


@app.command()
def reset(group: Group, topic: Topic, directory: Annotated[Path, typer.Argument()]) -> None:
    typer.echo(repr((group, topic, str(directory))))


@app.command()
def send(topic: Topic, bodies: Annotated[list[str] | None, typer.Argument()] = None, groups: Groups = None) -> None:
    typer.echo(repr((topic, bodies, groups)))


@dataclass(frozen=True, kw_only=True)
class Selection:
    topic: OneTopic = None


@app.command("list", finds=True)
def list_(selection: Selection, found: int = 0) -> int:
    typer.echo(repr(selection))
    return found


@app.command()
def audit(topics: Topics = None, other: Annotated[str | None, typer.Option("--other", metavar="TOPIC")] = None) -> None:
    typer.echo(repr((topics, other)))


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output.strip() if result.exit_code == 0 else result.output


@pytest.mark.parametrize(
    "words",
    [
        "C orders lake",
        "--group C --topic orders lake",
        "-g C orders lake",
        "C lake -t orders",
        "lake --topic=orders -gC",
        "-- C orders lake",
    ],
)
def test_a_topic_and_a_group_are_words_or_options_and_other_words_keep_their_order(words):
    assert said("reset", *words.split()) == (0, repr(("C", "orders", "lake")))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("C", "Missing argument 'TOPIC'"),
        ("-t orders", "Missing argument 'GROUP'"),
        ("C -t orders", "Missing argument 'directory'"),
        ("C orders lake -t orders", "unexpected extra argument"),
        ("C orders lake more", "unexpected extra argument"),
    ],
)
def test_what_is_missing_or_given_twice_is_refused(words, text):
    code, output = said("reset", *words.split())

    assert (code, text in output) == (2, True), output


def test_the_first_word_is_the_topic_unless_it_is_an_option_and_behind_any_number_of_words_there_is_none():
    assert said("send", "orders", "a", "b") == (0, repr(("orders", ["a", "b"], None)))
    assert said("send", "a", "b", "--topic", "orders", "-g", "C", "-g", "D") == (0, repr(("orders", ["a", "b"], ["C", "D"])))


def test_many_topics_are_words_or_options_and_another_option_with_a_topic_is_none_of_them():
    assert said("audit", "a", "b") == said("audit", "-t", "a", "--topic", "b") == (0, repr((["a", "b"], None)))
    assert said("audit", "--other", "x") == (0, repr((None, "x")))


def test_options_of_a_group_are_words_too():
    assert said("list", "orders") == said("list", "-t", "orders") == (0, repr(Selection(topic="orders")))
    assert said("list") == (0, repr(Selection()))
    assert said("list", "") == (0, repr(Selection(topic="")))


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--fail-if-empty",), 1), (("--fail-if-empty", "--found", "2"), 0)])
def test_an_empty_result_is_exit_code_1_only_if_that_is_asked_for(options, code):
    assert said("list", *options)[0] == code


def test_the_help_shows_both_ways():
    output = CliRunner().invoke(app, ["reset", "--help"], env={"COLUMNS": "120", "TERM": "dumb"}).output

    assert all(text in output for text in ("GROUP", "The consumer group.", "--topic", "-t", "The same as TOPIC."))
