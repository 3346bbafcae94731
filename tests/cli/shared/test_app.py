"""How commands are declared: topics and groups as words or options, and one option for an empty result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.options import Group, Groups, OneTopic, Topic, Topics

app = App()


@app.command()
def reset(group: Group, topic: Topic, directory: Annotated[Path, Argument()]) -> None:
    click.echo(repr((group, topic, str(directory))))


@app.command()
def send(topic: Topic, bodies: Annotated[list[str] | None, Argument()] = None, groups: Groups = None) -> None:
    click.echo(repr((topic, bodies, groups)))


@dataclass(frozen=True, kw_only=True)
class Selection:
    topic: OneTopic = None


@app.command("list", finds=True)
def list_(selection: Selection, found: Annotated[int, Option("--found")] = 0) -> int:
    click.echo(repr(selection))
    return found


@app.command()
def audit(topics: Topics = None, other: Annotated[str | None, Option("--other", metavar="TOPIC")] = None) -> None:
    click.echo(repr((topics, other)))


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
        ("C -t orders", "Missing argument 'DIRECTORY'"),
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


# ---------------------------------------------------------------- options that several commands share


@dataclass(frozen=True, kw_only=True)
class Paging:
    first: Annotated[int, Option("--first", "-f")] = 1
    names: Annotated[list[str] | None, Option("--name")] = None

    def __post_init__(self) -> None:
        if self.first < 1:
            raise click.BadParameter("pages are counted from 1")


@app.command()
def show(
    topic: Annotated[str, Argument()],
    limit: Annotated[int, Option("--limit")] = 5,
    *,
    paging: Paging,
    as_json: Annotated[bool, Option("--json")] = False,
) -> None:
    """Show pages."""
    click.echo(repr((topic, limit, paging, as_json)))


def test_options_of_a_group_reach_the_command_as_one_object():
    said = CliRunner().invoke(app, ["show", "orders", "-f", "3", "--name", "a", "--name", "b", "--json"])

    assert said.output == repr(("orders", 5, Paging(first=3, names=["a", "b"]), True)) + "\n"


def test_options_that_are_not_given_have_the_defaults_of_the_group():
    assert CliRunner().invoke(app, ["show", "orders"]).output == repr(("orders", 5, Paging(), False)) + "\n"


@pytest.mark.parametrize("given", [["--first", "0"], ["--first", "x"]])
def test_what_a_group_refuses_ends_the_command_before_it_begins(given):
    said = CliRunner().invoke(app, ["show", "orders", *given])

    assert said.exit_code == 2
    assert "orders" not in said.output.replace("show", "")


@pytest.mark.parametrize("words", [["audit", "--other"], ["audit", "-t"], ["show", "orders", "--limit"]])
def test_an_option_without_its_value_is_refused(words):
    code, output = said(*words)

    assert (code, "requires an argument" in output) == (2, True)


def test_an_alias_runs_the_command_and_both_helps_name_it(capsys):
    app = App(help="Things.", name="things")
    seen = []

    @app.command(aliases=("describe",))
    def show() -> None:
        """Show a thing."""
        seen.append("shown")

    app.main(["describe"], prog_name="things", standalone_mode=False)
    app.main(["--help"], standalone_mode=False)
    app.main(["describe", "--help"], standalone_mode=False)

    out = capsys.readouterr().out
    assert seen == ["shown"]
    assert "show, describe  Show a thing." in out
    assert "Names: show, describe." in out


class Kind(Enum):
    BROKER, NAME_SERVER = "broker", "nameserver"


def test_a_help_shows_defaults_as_they_are_given_and_no_empty_ones():
    shown = App()

    @shown.command()
    def get(of: Annotated[Kind, Option("--of")] = Kind.BROKER, name: Annotated[str, Option("--name")] = "") -> None:
        click.echo(repr((of, name)))

    said = CliRunner().invoke(shown, ["get", "--help"], show_default=True).output

    assert "[default: broker]" in said
    assert said.count("default:") == 1
    assert CliRunner().invoke(shown, ["get"]).output == "(<Kind.BROKER: 'broker'>, '')\n"
