"""Names that are loaded when first used."""

from __future__ import annotations

import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("reqest_uri", "did you mean 'request_uri'?"),
        ("simple_servr", "did you mean 'simple_server'?"),
        ("headers", "it is a module, which `import wsgiref.headers` brings"),
    ],
)
def test_a_name_that_is_meant_otherwise_is_told(name: str, told: str):
    with pytest.raises(AttributeError) as refused:
        lazy("wsgiref", {"util": "request_uri"}, "simple_server")[0](name)
    assert str(refused.value) == f"module 'wsgiref' has no attribute '{name}': {told}"


def test_an_import_of_a_misspelt_name_is_told_too_and_one_of_a_module_goes_on():
    with pytest.raises(ImportError, match=r"^cannot import name 'Mesage' from 'halfmoon': did you mean 'Message'\?$"):
        from halfmoon import Mesage  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"^cannot import name 'nothing_at_all' from 'halfmoon' \("):
        from halfmoon import nothing_at_all  # type: ignore[attr-defined]  # noqa: F401
    from halfmoon import sql92

    assert sql92.__name__ == "halfmoon.sql92"


def test_another_module_may_know_the_name_and_private_names_are_looked_up_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "names_of_a_test.py").write_text("def old_name(package, name): return f'{name} of {package} is new'\n")
    monkeypatch.syspath_prepend(tmp_path)
    load, _ = lazy("wsgiref", {"util": "request_uri"}, others="names_of_a_test")

    with pytest.raises(AttributeError, match=r"has no attribute 'old': old of wsgiref is new$"):
        load("old")
    with pytest.raises(AttributeError, match=r"has no attribute '_old'$"):
        load("_old")
