"""Names that are suggested for a command or an option that does not exist."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("group skp", "Did you mean 'skip'?"),
        ("topic describ x", "Did you mean 'describe'?"),
        ("produce orders x --kye 1", "Did you mean '--key'?"),
        ("serve --broker-prot 1", "Did you mean '--broker-port'"),
    ],
)
def test_names_that_are_spelt_alike_are_suggested(run_alone, words, said):
    assert said in run_alone(*words.split()).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bench send --duration 5s", "Did you mean '--for'?"),
        ("consume orders --tags paid", "Did you mean '--filter'"),
        ("send", "Did you mean 'produce'"),
        ("tx --pending", "Did you mean 'pending'"),
    ],
)
def test_names_whose_help_has_the_word_are_suggested(run_alone, words, said):
    assert said in run_alone(*words.split()).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("group stuck", "There are list, show, lag, skip, create, delete, reset."),
        ("group list --verbose", "There are --topic, --all, --names, --nameserver, --json,"),
        ("bench --seconds 5", "Options stand behind a command: `halfmoon bench COMMAND --help` lists them."),
        ("--nameserver 127.0.0.1:1 topic list", "Options stand behind a command: `halfmoon COMMAND --help` lists them."),
    ],
)
def test_where_no_name_is_near_all_are_named(run_alone, words, said):
    ran = run_alone(*words.split())

    assert ran.code == 2
    assert said in ran.err


def test_programs_get_the_suggestion_as_well(run_alone):
    assert "Did you mean '--for'?" in run_alone("bench", "send", "--duration", "5s", "--json").err
