"""Generator of the blocking producers and consumers (`halfmoon.client.sync`) from the asyncio ones (`halfmoon.client.aio`).

Every public method keeps its signature and docstring. A coroutine is run to its end on the background loop, those of `HERE` as far
as possible in the caller's own thread, a plain function in the loop's thread; an asyncio.Future becomes a
concurrent.futures.Future. Names lose ``Async``, and ``async with``, ``async for`` and ``await`` in docstrings lose ``async`` and
``await``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tools.generated import write_or_check

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "halfmoon" / "client" / "aio.py"
TARGET = SOURCE.with_name("sync.py")
HERE = {("AsyncProducer", "send"): "message", ("AsyncProducer", "send_batch"): "messages[0] if messages else None"}
"""Coroutines that are nothing but ``return await self._run(operation)``, and that any thread may run; and the message that tells
whose route must be known for that."""
HANDED = {("AsyncPullConsumer", "poll")}
"""Coroutines that hand out messages: by ``_take`` in the caller's thread, or where that gives none by a coroutine ``_hand_out`` of
the same arguments. What an interrupt keeps from the caller is taken back."""

HEAD = '''"""The blocking API. Generated from `halfmoon.client.aio`; do not edit.

Every call runs on one background event loop of the process (`halfmoon.runtime.drivers.threads`); safe to use from many threads.
"""

from __future__ import annotations

'''


def generate() -> str:
    """Return the text of `TARGET`."""
    tree = ast.parse(SOURCE.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Async")]
    text = "".join(_class(node) for node in classes)
    return _formatted(HEAD + _imports(tree, text) + text)


def _imports(tree: ast.Module, text: str) -> str:
    used = {node.id for node in ast.walk(ast.parse("from __future__ import annotations\n" + text)) if isinstance(node, ast.Name)}
    own = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    own += [
        target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    ]
    names_of = {
        "concurrent.futures": ["Future"],
        "typing": ["Any"],
        "collections.abc": ["Iterator"],
        "halfmoon.client.aio": own,
        "halfmoon.client.blocking": ["Blocking"],
        "halfmoon.runtime.drivers.threads": ["background"],
    }
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module not in (None, "__future__"):
            names_of.setdefault(str(node.module), []).extend(alias.name for alias in node.names)
    lines = []
    for module, names in names_of.items():
        if wanted := sorted(used.intersection(names)):
            lines.append(f"from {module} import {', '.join(wanted)}\n")
    return "".join(lines)


def _class(node: ast.ClassDef) -> str:
    name = node.name.removeprefix("Async")
    pieces = [f"\n\nclass {name}(Blocking):\n", _docstring(node, "    "), f"\n    _client: {node.name}\n"]
    for item in node.body:
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if item.name == "__init__":
            pieces.append(_constructor(item, node.name))
        elif item.name == "__anext__":
            pieces.append(_ITERATION)
        elif not item.name.startswith("_"):
            key = (node.name, item.name)
            pieces.append(_method(item, here=HERE.get(key), handed=key in HANDED))
    return "".join(pieces)


_ITERATION = """
    def __iter__(self) -> Iterator[StoredMessage]:
        self._client._running()
        return self

    def __next__(self) -> StoredMessage:
        try:
            client = self._client
            return self._loop.hand_over(client._hand_out_next, client._core.take_back, take=client._take_next).messages[0]
        except StopAsyncIteration:
            raise StopIteration from None
"""


def _constructor(item: ast.FunctionDef | ast.AsyncFunctionDef, cls: str) -> str:
    return (
        f"\n    def __init__({ast.unparse(item.args)}) -> None:\n"
        "        loop = background()\n"
        f"        super().__init__(loop.plain({cls}, {_passed(item.args)}), loop)\n"
    )


def _method(item: ast.FunctionDef | ast.AsyncFunctionDef, *, here: str | None, handed: bool) -> str:
    assert item.returns is not None, f"{item.name} has no return annotation"
    returns = ast.unparse(item.returns)
    passed = _passed(item.args)
    call = f"self._client.{item.name}({passed})"
    if here is not None:
        body = f"self._here({_operation(item)}, {here})"
    elif handed:
        client = "self._client"
        body = f"self._loop.hand_over({client}._hand_out, {client}._core.take_back, {passed}, take={client}._take).messages"
    elif isinstance(item, ast.AsyncFunctionDef):
        body = f"self._loop.call({call})"
    elif returns.startswith("asyncio.Future["):
        returns = returns.removeprefix("asyncio.")
        body = f"self._loop.submit(lambda: {call})"
    else:
        body = f"self._loop.plain(self._client.{item.name}, {passed})"
    line = body if returns == "None" else f"return {body}"
    return f"\n    def {item.name}({ast.unparse(item.args)}) -> {returns}:\n{_docstring(item, '        ')}        {line}\n"


def _operation(item: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the operation that a coroutine of `HERE` runs, as its blocking twin names it."""
    match item.body[-1]:
        case ast.Return(value=ast.Await(value=ast.Call(func=ast.Attribute(attr="_run"), args=[operation]))):
            return ast.unparse(operation).replace("self.", "self._client.", 1)
    raise AssertionError(f"{item.name} does more than to run an operation")


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


def _formatted(text: str) -> str:
    where = ["--stdin-filename", str(TARGET), "-"]
    for verb in (["check", "-q", "--fix-only"], ["format", "-q"]):
        command = [sys.executable, "-m", "ruff", *verb, *where]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, generate(), sys.argv[1:]))
