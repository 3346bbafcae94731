"""`halfmoon context`: adding, choosing, showing and removing."""

from __future__ import annotations

import os
from pathlib import Path

FILE = Path("halfmoon", "contexts.json")


def test_a_context_is_added_used_shown_and_removed(run_alone):
    assert run_alone("context", "add", "prod", "-n", "mq1:9876;mq2:9876").code == 0
    assert run_alone("context", "use", "prod").code == 0

    shown = run_alone("context", "show", "--json").json()
    listed = run_alone("context", "list")
    removed = run_alone("context", "remove", "prod")

    assert shown == {"context": "prod", "in_use": True, "nameserver": "mq1:9876;mq2:9876", "chosen_by": "in use"}
    assert [line.split()[:3] for line in listed.out.splitlines() if "mq1" in line] == [["*", "prod", "mq1:9876;mq2:9876"]]
    assert "default is in use" in removed.out
    assert [each["context"] for each in run_alone("context", "list", "--json").json()] == ["default"]


def test_options_that_sign_and_encrypt_are_kept_as_absolute_paths_wherever_they_stand(run_alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prod.yml").write_text("accessKey: a\nsecretKey: hidden-away\n")

    run_alone("--tls-no-verify", "context", "add", "prod", "-n", "a:1", "--credentials", "prod.yml", "--tls-ca=ca.pem", "--tls")

    shown = run_alone("context", "show", "prod", "--json").json()
    assert shown["credentials"] == str(tmp_path / "prod.yml")
    assert (shown["tls"], shown["tls_ca"], shown["tls_no_verify"]) == (True, str(tmp_path / "ca.pem"), True)
    assert "hidden-away" not in Path(os.environ["XDG_CONFIG_HOME"], FILE).read_text()


def test_a_context_is_shown_in_lines(run_alone):
    run_alone("context", "add", "prod", "-n", "a:1")

    assert run_alone("context", "show", "prod").out.splitlines() == [
        "context          prod",
        "in use           no",
        "nameserver       a:1",
        "chosen by",
    ]


def test_the_default_context_is_shown_with_the_name_servers_that_it_stands_for(run_alone, monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert run_alone("context", "show", "--json").json()["nameserver"] == "127.0.0.1:9876"

    monkeypatch.setenv("NAMESRV_ADDR", "b:1")
    assert run_alone("context", "show", "--json").json()["nameserver"] == "b:1"


def test_a_context_is_replaced_only_where_that_is_said(run_alone):
    run_alone("context", "add", "prod", "-n", "a:1")

    refused = run_alone("context", "add", "prod", "-n", "b:1")
    assert (refused.code, run_alone("context", "show", "prod", "--json").json()["nameserver"]) == (2, "a:1")
    assert "there is a context prod already" in refused.err

    assert run_alone("context", "add", "prod", "-n", "b:1", "--replace").code == 0
    assert run_alone("context", "show", "prod", "--json").json()["nameserver"] == "b:1"


def test_what_is_no_address_is_refused(run_alone):
    ran = run_alone("context", "add", "prod", "-n", "nowhere")

    assert ran.code == 2
    assert "host:port" in ran.err


def test_an_unknown_context_is_refused_with_the_nearest_one(run_alone):
    run_alone("context", "add", "prod", "-n", "a:1")

    for words in (("use", "prot"), ("show", "prot"), ("remove", "prot")):
        ran = run_alone("context", *words)
        assert ran.code == 2
        assert "did you mean 'prod'?" in ran.err


def test_the_default_one_can_be_used_but_not_removed_nor_made(run_alone):
    run_alone("context", "add", "prod", "-n", "a:1")
    run_alone("context", "use", "prod")

    assert run_alone("context", "use", "default").code == 0
    assert run_alone("context", "show", "--json").json()["context"] == "default"
    assert run_alone("context", "add", "default", "-n", "a:1").code == 2
    assert run_alone("context", "remove", "default", "--json").json() == {"context": "default", "in_use": True}
