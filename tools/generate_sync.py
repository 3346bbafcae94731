"""Writes the blocking client (`halfmoon.client.sync`) from the asyncio one (`halfmoon.client.aio`).

    python tools/generate_sync.py            write it
    python tools/generate_sync.py --check    exit with 1 when it is stale

Every public method keeps its signature and docstring. A coroutine is run to its end on the background loop, a plain function
is run in the loop's thread, and an asyncio.Future becomes a concurrent.futures.Future. Names lose ``Async``, and ``async with``,
``async for`` and ``await`` in docstrings lose ``async`` and ``await``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "halfmoon" / "client" / "aio.py"
TARGET = ROOT / "src" / "halfmoon" / "client" / "sync.py"

HEAD = '''"""The blocking API: producers, consumers and administration. Generated from `halfmoon.client.aio`; do not edit.

Every call runs on one background event loop of the process (`halfmoon.shell.threads`); safe to use from many threads.
"""

from __future__ import annotations

'''

COMMON = '''
T = TypeVar("T")


class _Client:
    """What all blocking clients share: the asyncio client behind them, and the loop on which it lives."""

    _client: _AsyncClient[Any]

    def __init__(self, client: _AsyncClient[Any], loop: BackgroundLoop) -> None:
        self._client = client
        self._loop = loop

    @property
    def settings(self) -> Any:
        """The settings it was made with, checked."""
        return self._client.settings

    @property
    def client_id(self) -> str:
        """What brokers know it by."""
        return self._client.client_id

    def start(self) -> None:
        """Open for business: find routes, show the client to the brokers, begin what runs beside. Once in a life."""
        self._loop.call(self._client.start())

    def close(self) -> None:
        """Finish what is under way, leave the brokers, close all connections. Closing again does nothing."""
        self._loop.call(self._client.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
'''


def generate() -> str:
    """Return the text of the blocking client, before formatting."""
    tree = ast.parse(SOURCE.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Async")]
    bodies = [_class(node) for node in classes]
    text = COMMON + "".join(bodies)
    return HEAD + _imports(tree, text, [node.name for node in classes]) + text


def _imports(tree: ast.Module, text: str, names: list[str]) -> str:
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    found = [
        "from concurrent.futures import Future\n",
        "from typing import Any, Self, TypeVar\n",
        f"from halfmoon.client.aio import Callback, _AsyncClient, {', '.join(names)}\n",
        "from halfmoon.shell.threads import BackgroundLoop, background\n",
    ]
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "__future__"):
            wanted = [alias.name for alias in node.names if alias.name in used]
            if wanted:
                found.append(f"from {node.module} import {', '.join(wanted)}\n")
    if "Iterator" in used:
        found.append("from collections.abc import Iterator\n")
    return "".join(found)


def _class(node: ast.ClassDef) -> str:
    name = node.name.removeprefix("Async")
    pieces = [f"\n\nclass {name}(_Client):\n", _docstring(node, "    "), f"\n    _client: {node.name}\n"]
    for item in node.body:
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if item.name == "__init__":
            pieces.append(_constructor(item, node.name))
        elif item.name == "__anext__":
            pieces.append(_ITERATION)
        elif not item.name.startswith("_"):
            pieces.append(_method(item))
    return "".join(pieces)


_ITERATION = """
    def __iter__(self) -> Iterator[StoredMessage]:
        return self

    def __next__(self) -> StoredMessage:
        try:
            return self._loop.call(self._client.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
"""


def _constructor(item: ast.FunctionDef | ast.AsyncFunctionDef, cls: str) -> str:
    return (
        f"\n    def __init__({ast.unparse(item.args)}) -> None:\n"
        "        loop = background()\n"
        f"        super().__init__(loop.plain({cls}, {_passed(item.args)}), loop)\n"
    )


def _method(item: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    assert item.returns is not None, f"{item.name} has no return annotation"
    returns = ast.unparse(item.returns)
    passed = _passed(item.args)
    call = f"self._client.{item.name}({passed})"
    if isinstance(item, ast.AsyncFunctionDef):
        body = f"self._loop.call({call})"
    elif returns.startswith("asyncio.Future["):
        returns = returns.removeprefix("asyncio.")
        body = f"self._loop.submit(lambda: {call})"
    else:
        body = f"self._loop.plain(self._client.{item.name}, {passed})"
    line = body if returns == "None" else f"return {body}"
    return f"\n    def {item.name}({ast.unparse(item.args)}) -> {returns}:\n{_docstring(item, '        ')}        {line}\n"


def _passed(args: ast.arguments) -> str:
    parts = [arg.arg for arg in [*args.posonlyargs, *args.args] if arg.arg != "self"]
    parts += [f"*{args.vararg.arg}"] if args.vararg else []
    parts += [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    parts += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return ", ".join(parts)


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, indent: str) -> str:
    text = ast.get_docstring(node, clean=True)
    assert text, f"{node.name} has no docstring"
    for old, new in (("async with", "with"), ("async for", "for"), ("async def", "def"), ("await ", ""), ("Async", "")):
        text = text.replace(old, new)
    lines = text.splitlines()
    if len(lines) == 1:
        return f'{indent}"""{text}"""\n'
    inner = "\n".join(f"{indent}{line}" if line and i else line for i, line in enumerate(lines))
    return f'{indent}"""{inner}\n{indent}"""\n'


def formatted(text: str) -> str:
    """Return the text as the project formats it."""
    base = [sys.executable, "-m", "ruff"]
    where = ["--stdin-filename", str(TARGET)]
    for verb in (["check", "-q", "--fix-only"], ["format", "-q"]):
        text = subprocess.run([*base, *verb, *where, "-"], input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main(arguments: list[str]) -> int:
    """Write or check the file; return the exit code."""
    text = formatted(generate())
    if "--check" in arguments:
        if TARGET.read_text() == text:
            return 0
        print(f"{TARGET.relative_to(ROOT)} is stale: run python tools/generate_sync.py", file=sys.stderr)
        return 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
