"""Checks of a machine: what is missing, old or full, and what to do."""

from __future__ import annotations

import resource
import shutil
from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from halfmoon.cli.doctor import machine as module
from halfmoon.cli.doctor.check import Check
from halfmoon.cli.doctor.machine import machine

Usage = namedtuple("Usage", "total used free")


def check(name: str, data: Path = Path("/")) -> Check:
    return next(each for each in machine(data) if each.name == name)


def _missing(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("printed", "state"),
    [('openjdk version "21.0.2" 2024-01-16', "ok"), ('openjdk version "1.8.0_402"', "warning"), ("no version", "warning")],
)
def test_java_is_new_enough_or_named(monkeypatch, tmp_path, printed, state):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert check("Java").state == state


def test_a_machine_without_java_is_told_who_needs_it(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)

    assert check("Java") == Check("Java", "note", "not found; only Spark needs it", "install Java 17 or newer, or set JAVA_HOME")


@pytest.mark.parametrize(("used", "state"), [(50, "ok"), (80, "warning"), (95, "problem")])
def test_a_disk_is_a_problem_from_where_brokers_refuse_sends(monkeypatch, tmp_path, used, state):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, used, 100 - used))

    assert check("disk", tmp_path).state == state


def test_few_files_are_a_warning(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1024))

    assert check("open files").state == "warning"
    assert "LimitNOFILE" in check("open files").do


def test_the_extension_is_named_as_switched_off_missing_or_of_another_version(monkeypatch):
    monkeypatch.setattr(module, "NATIVE", None)
    monkeypatch.setenv("HALFMOON_NATIVE", "0")
    assert check("extension").do == "unset HALFMOON_NATIVE"

    monkeypatch.delenv("HALFMOON_NATIVE")
    monkeypatch.setattr(module, "version", _missing)
    assert check("extension").state == "note"

    monkeypatch.setattr(module, "version", lambda _: "0.0.9")
    assert "halfmoon-native 0.0.9 belongs to another version" in check("extension").what


def test_a_directory_that_may_not_be_looked_at_is_a_finding_and_no_failure(monkeypatch, tmp_path):
    def refused(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refused)

    assert [check.name for check in machine(tmp_path / "a" / "b")][-1] == "disk"
