"""Names that are loaded when first used."""

from __future__ import annotations

import sys

import pytest

from halfmoon.lazy import lazy


def test_a_name_is_loaded_from_its_module_when_it_is_first_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "wsgiref.util", raising=False)
    load, names = lazy("wsgiref", {"headers": "Headers", "util": "guess_scheme request_uri"}, "simple_server")
    assert names() == ["Headers", "guess_scheme", "request_uri", "simple_server"]
    assert "wsgiref.util" not in sys.modules

    found = load("request_uri")

    assert found is sys.modules["wsgiref.util"].request_uri


def test_an_unknown_name_is_an_attribute_error_as_of_any_module():
    with pytest.raises(AttributeError, match=r"^module 'wsgiref' has no attribute 'nothing'$"):
        lazy("wsgiref", {"util": "request_uri"})[0]("nothing")


def test_a_package_that_is_missing_is_told_with_the_extra_that_brings_it(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "moon_of_a_test").mkdir()
    (tmp_path / "moon_of_a_test" / "far.py").write_text("import not_installed_here.at_all\n")
    (tmp_path / "moon_of_a_test" / "own.py").write_text("import moon_of_a_test.gone\n")
    monkeypatch.syspath_prepend(tmp_path)
    load, _ = lazy("moon_of_a_test", {"far": "away", "own": "mistake"}, extra="lake")

    with pytest.raises(ModuleNotFoundError, match=r"needs not_installed_here, .*: pip install 'halfmoon\[lake\]'$") as told:
        load("away")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'moon_of_a_test.gone'$"):
        load("mistake")

    assert told.value.name == "not_installed_here"
