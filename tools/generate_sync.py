"""Generator of the blocking clients (`halfmoon.client.sync`, `sync_transaction`) from the asyncio ones (`aio`, `aio_transaction`).

Every public method keeps its signature and docstring. In `sync` a coroutine is run to its end on the background loop, those of
`HERE` as far as possible in the caller's own thread, and a plain function in the loop's thread. In `sync_transaction`, whose
methods do nothing but run operations, each method is that of the asyncio class without ``await``. An asyncio.Future becomes a
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
CLIENT = ROOT / "src" / "halfmoon" / "client"
TARGETS = {"sync": "aio", "sync_transaction": "aio_transaction"}
"""The generated modules, and what each is generated from."""
HERE = {("AsyncProducer", "send"), ("AsyncProducer", "send_batch")}
"""Coroutines that end with ``return await self.run(operation)``, which any thread may run."""
HANDED = {("AsyncPullConsumer", "poll")}
"""Coroutines that hand out messages: in the caller's thread, or where that gives none by the operation ``hand_out`` of the same
arguments. What an interrupt keeps from the caller is taken back."""

HEADS = {
    "sync": '''"""Blocking clients: producers and consumers. Generated from `halfmoon.client.aio`; do not edit.

Calls run on one background event loop of the process (`halfmoon.runtime.drivers.threads`); safe to use from many threads.
"""
''',
    "sync_transaction": '''"""Blocking transactional producers. Generated from `halfmoon.client.aio_transaction`; do not edit.

Local transactions run in the caller's own thread, for database connections often belong to one. Storing and deciding run in it too,
as far as they need no event loop.
"""
''',
}


def generate(target: str) -> str:
    """Return the text of one of `TARGETS`."""
    source = (CLIENT / f"{TARGETS[target]}.py").read_text()
    tree = ast.parse(source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Async")]
    text = "".join(_class(node) if target == "sync" else _twin(node, source) for node in classes)
    return _formatted(f"{HEADS[target]}\nfrom __future__ import annotations\n\n{_imports(tree, text, target)}{text}", target)


def _imports(tree: ast.Module, text: str, target: str) -> str:
    used = {node.id for node in ast.walk(ast.parse("from __future__ import annotations\n" + text)) if isinstance(node, ast.Name)}
    own = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef)]
    own += [
        target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    ]
    names_of = {
        "concurrent.futures": ["Future"],
        "typing": ["Any"],
        "collections.abc": ["Iterator"],
        f"halfmoon.client.{TARGETS[target]}": own,
        "halfmoon.client.blocking": ["Blocking", "BlockingSender"],
        **({} if target == "sync" else {"halfmoon.client.sync": ["Producer"]}),
        "halfmoon.runtime.drivers.threads": ["background"],
    }
    lines = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            lines += [f"import {alias.name}\n" for alias in node.names if alias.name in used]
        elif isinstance(node, ast.ImportFrom) and node.module not in (None, "__future__"):
            names_of.setdefault(str(node.module), []).extend(alias.name for alias in node.names)
    for module, names in names_of.items():
        if wanted := sorted(used.intersection(names)):
            lines.append(f"from {module} import {', '.join(wanted)}\n")
    return "".join(lines)


def _class(node: ast.ClassDef) -> str:
    name = node.name.removeprefix("Async")
    base = "BlockingSender" if any(cls == node.name for cls, _ in HERE) else "Blocking"
    pieces = [f"\n\nclass {name}({base}):\n", _docstring(node, "    "), f"\n    _client: {node.name}\n"]
    for item in node.body:
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if item.name == "__init__":
            pieces.append(_constructor(item, node.name))
        elif item.name == "__anext__":
            pieces.append(_ITERATION)
        elif not item.name.startswith("_"):
            key = (node.name, item.name)
            pieces.append(_method(item, here=key in HERE, handed=key in HANDED))
    return "".join(pieces)


def _twin(node: ast.ClassDef, source: str) -> str:
    """Return a class whose methods are those of an asyncio one without ``await``, over `Producer` where that is over its twin."""
    if not node.bases:
        return "\n\n" + _blocking(_segment(source, node))
    pieces = [f"\n\nclass {_blocking(node.name)}(Producer):\n", _docstring(node, "    "), f"\n    _client: {node.name}\n"]
    pieces += ["\n", *_declared(node).values()]
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == "__init__":
            pieces.append(_constructor(item, node.name, "Producer, self"))
            pieces += [f"        self.{name} = self._client.{name}\n" for name in _declared(node)]
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_"):
            pieces.append("\n" + _blocking(_segment(source, item)))
    return "".join(pieces)


def _segment(source: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    lines = source.splitlines(keepends=True)
    return "".join(lines[node.lineno - 1 : node.end_lineno])


def _blocking(text: str) -> str:
    """Return the text of asyncio code as blocking code."""
    for old, new in (
        *_WORDS,
        ("asyncio.Future", "Future"),
        ("asyncio.CancelledError: cancelled", "KeyboardInterrupt: interrupted"),
    ):
        text = text.replace(old, new)
    return text.replace("__aenter__", "__enter__").replace("__aexit__", "__exit__")


_WORDS = (("async with", "with"), ("async for", "for"), ("async def", "def"), ("await ", ""), ("Async", ""))
_CODE = (
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("asyncio.Future", "Future"),
    ("asyncio.CancelledError: cancelled", "KeyboardInterrupt: interrupted"),
)


def _declared(node: ast.ClassDef) -> dict[str, str]:
    """Return what the asyncio class declares, by name, as it stands there: a type, and the text about it."""
    found = {}
    for item, after in zip(node.body, node.body[1:], strict=False):
        match item, after:
            case ast.AnnAssign(target=ast.Name(name), value=None), ast.Expr(ast.Constant(str(text))):
                found[name] = f'    {ast.unparse(item)}\n    """{text}"""\n'
    return found


_ITERATION = """
    def __iter__(self) -> Iterator[StoredMessage]:
        self._client.running()
        return self

    def __next__(self) -> StoredMessage:
        try:
            core, steady = self._client.core, self._client.clock.steady
            return self._loop.hand_over(
                lambda: handed_next(self._client), core.take_back, take=lambda place: core.take(steady(), place, 1)
            ).messages[0]
        except StopAsyncIteration:
            raise StopIteration from None
"""


def _constructor(item: ast.FunctionDef | ast.AsyncFunctionDef, cls: str, above: str = "") -> str:
    return (
        f"\n    def __init__({ast.unparse(item.args)}) -> None:\n"
        "        loop = background()\n"
        f"        super({above}).__init__(loop.plain({cls}, {_passed(item.args)}), loop)\n"
    )


def _method(item: ast.FunctionDef | ast.AsyncFunctionDef, *, here: bool, handed: bool) -> str:
    assert item.returns is not None, f"{item.name} has no return annotation"
    returns = ast.unparse(item.returns)
    passed = _passed(item.args)
    call = f"self._client.{item.name}({passed})"
    if here:
        body = f"self.run({_operation(item)})"
    elif handed:
        client, core = "self._client", "self._client.core"
        taken = f"lambda place: {core}.take({client}.clock.steady(), place)"
        given = f"lambda: {client}.run({core}.hand_out({passed}))"
        body = f"self._loop.hand_over({given}, {core}.take_back, take={taken}).messages"
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
        case ast.Return(value=ast.Await(value=ast.Call(func=ast.Attribute(attr="run"), args=[operation]))):
            return ast.unparse(operation)
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
    for old, new in _WORDS:
        text = text.replace(old, new)
    lines = text.splitlines()
    if len(lines) == 1:
        return f'{indent}"""{text}"""\n'
    inner = "\n".join(f"{indent}{line}" if line and i else line for i, line in enumerate(lines))
    return f'{indent}"""{inner}\n{indent}"""\n'


def _formatted(text: str, target: str) -> str:
    where = ["--stdin-filename", str(CLIENT / f"{target}.py"), "-"]
    for verb in (["check", "-q", "--fix-only"], ["format", "-q"]):
        command = [sys.executable, "-m", "ruff", *verb, *where]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    sys.exit(max(write_or_check(CLIENT / f"{target}.py", generate(target), sys.argv[1:]) for target in TARGETS))
