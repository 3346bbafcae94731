"""The import rule: who may import whom, held by reading every import of the package (`docs/architecture.md`).

Each module belongs to the layer of the longest prefix in `LAYERS`. Imports inside functions count like those at the top,
and are refused besides; so are cycles, and in the pure layers everything that waits, looks at a clock or opens a file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*(ROOT / "src" / "halfmoon").rglob("*.py"), *(ROOT / "simulation").rglob("*.py")])

LAYERS = {
    "halfmoon": "names",
    **{
        f"halfmoon.{name}": "ground"
        for name in (
            "errors",
            "conversion",
            "lazy",
            "model",
            "results",
            "settings",
            "limits",
            "logs",
            "shown",
            "metrics",
            "effects",
            "instant",
            "ports",
            "hot",
            "columns",
            "allocation",
            "sql92",
            "documentation",
        )
    },
    "halfmoon.wire": "wire",
    "halfmoon.store": "store",
    "halfmoon.nameserver": "nameserver",
    "halfmoon.nameserver.__main__": "program",
    "halfmoon.programs": "program",
    "halfmoon.broker": "broker",
    "halfmoon.broker.__main__": "program",
    "halfmoon.client": "client",
    "halfmoon.client.core": "client.core",
    "halfmoon.client.settings": "client.core",  # plain values, at the place where users look for them
    "halfmoon.runtime": "runtime",
    "halfmoon.events": "events",
    "halfmoon.events.testing": "testing",  # the bus, where users look for it
    "halfmoon.data": "data",
    "halfmoon.spark": "spark",
    "halfmoon.console": "console",
    "halfmoon.cli": "cli",
    "halfmoon.__main__": "cli",
    "halfmoon.testing": "testing",
    "simulation": "simulation",
}

MAY_IMPORT = {
    "ground": {"ground"},
    "wire": {"ground", "wire"},
    "store": {"ground", "wire", "store"},
    "nameserver": {"ground", "wire", "nameserver"},
    "broker": {"ground", "wire", "store", "broker"},
    "client.core": {"ground", "wire", "client.core"},
    "runtime": {"ground", "wire", "runtime"},
    "client": {"ground", "wire", "client.core", "client", "runtime"},
    "program": {"ground", "wire", "store", "nameserver", "broker", "runtime", "program"},
    "names": {"ground", "client"},
    "events": {"ground", "names", "client", "events"},
    "data": {"ground", "names", "client", "wire", "data"},
    "spark": {"ground", "names", "client", "wire", "data", "spark"},
    "console": {"ground", "names", "client", "console"},
    "cli": {"ground", "names", "client", "program", "console", "cli", "events", "data", "spark"},
    "testing": {
        *("ground", "wire", "store", "nameserver", "broker", "client.core", "client", "runtime", "program", "names", "events"),
        "testing",
    },
}
MAY_IMPORT["simulation"] = {*MAY_IMPORT["testing"], "simulation"}

PURE = {"ground", "wire", "store", "nameserver", "broker", "client.core"}
IMPURE_MODULES = {
    *("asyncio", "concurrent", "glob", "io", "multiprocessing", "os", "pathlib", "sched", "secrets", "select", "selectors"),
    *(
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uvloop",
        "mmap",
        "fcntl",
    ),
}
DANGEROUS_MODULES = {"pickle", "marshal", "shelve"}
DANGEROUS_CALLS = {"eval", "exec", "__import__", "compile"}

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("halfmoon.hot", "os"): "whether the compiled twin is wanted is asked once, before anything is chosen",
    (
        "halfmoon.conversion",
        "threading",
    ): "a lock around what a library does once a type, and not safely; nothing else waits for it",
    ("halfmoon.programs.monitoring", "halfmoon"): "the version, which only the package itself knows",
    (
        "halfmoon.console.pages.settings",
        "halfmoon.programs.described",
    ): "the reasons of settings stand where the servers declare them",
}
"""Single imports that break the table on purpose: (module, what it imports) and the reason."""

LAZY = {
    ("halfmoon.hot", "halfmoon_native"): "it may be missing, and is not looked for where it is not wanted",
    ("halfmoon.testing.plugin", "halfmoon.testing.local"): "every pytest run loads the plugin; the servers only when asked for",
    ("halfmoon.testing.plugin", "halfmoon.events.testing"): "as the servers",
    ("halfmoon.testing.plugin", "halfmoon.testing.world"): "as the servers",
    (
        "halfmoon.cli.outbox.commands",
        "halfmoon.cli.outbox.database",
    ): "SQLAlchemy is an extra, and 300 ms that other commands need not wait",
    ("halfmoon.cli.sql.command", "halfmoon.cli.sql.query"): "DuckDB and pyarrow are no dependencies: this says what to install",
    ("halfmoon.cli.store.dump", "halfmoon.programs.dump"): "the store takes 150 ms that other commands of msg need not wait",
    ("halfmoon.cli.store.dump", "halfmoon.cli.store.arrow"): "pyarrow is an extra, and 100 ms that JSON lines need not wait",
    ("halfmoon.cli.main", "halfmoon.cli.servers"): "a server is ready sooner without what other commands need",
    ("halfmoon.cli.main", "halfmoon.cli.shared.command_group"): "as above",
    ("halfmoon.cli.shared.command_group", "halfmoon.cli.servers"): "the help of a server is seldom asked for",
    ("halfmoon.cli.shared.target", "halfmoon.cli.contexts.file"): "a help page reads no contexts, and need not wait 15 ms for that",
    ("halfmoon.cli.shared.output", "msgspec"): "as above: only JSON takes it",
    ("halfmoon.cli.shared.command_group", "halfmoon.hot"): "only --version says which twin is there",
    ("halfmoon.cli.shared.command_group", "halfmoon.cli.completion"): "only a shell asks for words that may stand next",
    (
        "halfmoon.client.spans",
        "opentelemetry.trace.propagation.tracecontext",
    ): "an extra, asked for where the application has it",
    ("halfmoon.events.declarations.asyncapi", "pydantic"): "no dependency: asked for a schema only by who has a class of it",
    (
        "halfmoon.runtime.leases",
        "halfmoon.runtime.leases.postgresql",
    ): "it needs psycopg, which only those install who keep a lease in PostgreSQL",
    ("halfmoon.broker.access.accounts", "yaml"): "a start without access control need not wait 20 ms for it",
    (
        "halfmoon.console.pages.settings",
        "halfmoon.programs.described",
    ): "it brings the whole store, 100 ms that a start need not wait",
    ("halfmoon.programs.embedded", "halfmoon.programs.monitoring"): "prometheus-client and what HTTP needs, where it is asked for",
    ("halfmoon.cli.servers", "halfmoon.cli.console.child"): "a start without --console loads nothing for it",
    ("halfmoon.cli.servers", "halfmoon.cli.console.listening"): "as above",
    ("halfmoon.cli.console.commands", "halfmoon.console.server"): "Starlette and uvicorn are an extra",
}
"""Imports inside functions that save time for many and dodge nothing, each with its reason."""


class Import(NamedTuple):
    """One import of a module: what is named, the line, and whether it stands inside a function."""

    name: str
    line: int
    inside: bool


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


def layer_of(module: str) -> str:
    """Return the layer of the longest prefix that `LAYERS` knows. ``halfmoon`` stands for itself alone."""
    parts = module.split(".")
    for end in range(len(parts), 1 if parts[0] == "halfmoon" else 0, -1):
        if layer := LAYERS.get(".".join(parts[:end])):
            return layer
    return LAYERS.get(module, "unknown")


def imports_of(tree: ast.AST, module: str, *, package: bool = False) -> Iterator[Import]:
    """Yield every import of a module; ``from package import module`` counts as an import of that module, and so does
    ``import_module`` of a text."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in inside)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + (1 if package else 0)]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in MODULES else base, node.lineno, id(node) in inside)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = getattr(node.args[0], "value", None)
            if isinstance(name, str):  # else it comes from a table, or from a user
                yield Import(name, node.lineno, id(node) in inside)


@cache
def imports_in(path: Path) -> list[Import]:
    """Return every import of a file of the package."""
    return list(imports_of(ast.parse(path.read_text()), module_name(path), package=path.name == "__init__.py"))


def faults(source: str, module: str, *, package: bool = False) -> list[str]:
    """Return what a module's text does against the rule, as sentences."""
    tree, layer = ast.parse(source), layer_of(module)
    found = [] if layer in MAY_IMPORT else [f"{module} belongs to no layer: add it to LAYERS"]
    for name, line, inside in imports_of(tree, module, package=package):
        top = name.partition(".")[0]
        if inside and (module, name) not in LAZY:
            found.append(f"{module}:{line} imports {name} inside a function")
        ours = top in ("halfmoon", "simulation")
        if ours and layer_of(name) not in MAY_IMPORT.get(layer, ()) and (module, name) not in EXCEPTIONS:
            found.append(f"{module}:{line} ({layer}) may not import {name} ({layer_of(name)})")
        if top in DANGEROUS_MODULES or (layer in PURE and top in IMPURE_MODULES and (module, name) not in EXCEPTIONS):
            found.append(f"{module}:{line} ({layer}) may not import {name}")
        if layer in PURE and name == "random" and not _takes_only_the_class(tree):
            found.append(f"{module}:{line} ({layer}) takes more of random than the class Random")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _call_faults(node, module, layer)
    return found


def _takes_only_the_class(tree: ast.AST) -> bool:
    whole = any(isinstance(n, ast.Import) and any(a.name == "random" for a in n.names) for n in ast.walk(tree))
    taken = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "random" for a in n.names}
    used = {n.attr for n in ast.walk(tree) if whole and isinstance(n, ast.Attribute) and ast.unparse(n.value) == "random"}
    return taken | used <= {"Random"}


def _call_faults(node: ast.Call, module: str, layer: str) -> list[str]:
    text = ast.unparse(node.func)
    refused = text in DANGEROUS_CALLS or text.startswith("importlib.")
    refused = refused or any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords)
    if layer in PURE:
        refused = refused or text == "open"
        refused = refused or text in {"datetime.now", "datetime.utcnow", "datetime.datetime.now", "date.today"}
    return [f"{module}:{node.lineno} ({layer}) may not call {text}"] if refused else []


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, by taking away again and again what imports nothing that is left."""
    left = {module: set(names) for module, names in graph.items()}
    for step in (lambda m: left[m] & left.keys(), lambda m: {n for n in left if m in left[n]}):
        while free := [module for module in left if not step(module) - {module}]:
            for module in free:
                del left[module]
    return [sorted(left)] if left else []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_stands_below_it(path: Path):
    assert faults(path.read_text(), module_name(path), package=path.name == "__init__.py") == []


def test_no_modules_import_each_other_in_a_circle():
    graph = {module_name(path): {found.name for found in imports_in(path) if found.name in MODULES} for path in FILES}

    assert cycles(graph) == []


def test_every_exception_is_still_needed():
    stated = {(module_name(path), found.name) for path in FILES for found in imports_in(path)}

    assert (set(EXCEPTIONS) | set(LAZY)) - stated == set()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("halfmoon.wire.record", "from halfmoon.store import log"),
        ("halfmoon.errors", "import halfmoon.wire.table"),
        ("halfmoon.store.log", "import time"),
        ("halfmoon.store.log", "from os import path"),
        ("halfmoon.broker.pull.pulls", "from halfmoon.runtime.clock import Clock"),
        ("halfmoon.client.core.produce.send", "import asyncio"),
        ("halfmoon.client.core.produce.send", "import random\nx = random.random()"),
        ("halfmoon.store.log", "open('x')"),
        ("halfmoon.runtime.connections.asyncio_connections", "def f():\n    import json"),
        ("halfmoon.runtime.connections.asyncio_connections", "import pickle"),
        ("halfmoon.cli.main", "from halfmoon.store import Store"),
        ("halfmoon.cli.main", "import subprocess\nsubprocess.run('ls', shell=True)"),
        ("halfmoon.testing.local", "from simulation.history import History"),
        ("halfmoon.novel.thing", "import json"),
    ],
)
def test_the_rule_bites(module: str, text: str):
    assert len(faults(text, module)) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("halfmoon.store.log", "from random import Random\nimport halfmoon.wire.record"),
        ("halfmoon.client.aio", "import asyncio\nfrom halfmoon.client.core import send"),
        ("halfmoon.cli.serve", "from halfmoon.broker.__main__ import main"),
    ],
)
def test_the_rule_lets_through_what_it_should(module: str, text: str):
    assert faults(text, module) == []


def test_a_circle_is_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
