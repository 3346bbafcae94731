"""Whatever stands for a port has all of its methods, with the same arguments."""

from __future__ import annotations

import inspect

import pytest

from halfmoon.nameserver.nameserver import NameServer
from halfmoon.ports import Core, Disk, File
from halfmoon.runtime.files.disk import RealDisk, RealFile
from halfmoon.runtime.server.null_core import NullCore
from halfmoon.testing.disk import SimDisk, SimFile


def parameters(cls: type, method: str) -> list[tuple[str, object, object]]:
    """Return names, kinds and defaults of a method's arguments."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(getattr(cls, method)).parameters.values()]


@pytest.mark.parametrize(
    ("port", "cls"),
    [(Core, NameServer), (Core, NullCore), (Disk, RealDisk), (Disk, SimDisk), (File, RealFile), (File, SimFile)],
)
def test_a_class_has_every_method_of_its_port(port: type, cls: type) -> None:
    methods = [name for name, value in vars(port).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert methods
    assert {name: parameters(cls, name) for name in methods} == {name: parameters(port, name) for name in methods}
