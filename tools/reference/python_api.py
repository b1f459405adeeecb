"""Public names with their signatures and docstrings, as docs/reference/python.md shows them.

Taken from the text of the sources, which is formatted already and the same under every Python.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from tools.reference.tables import code, table

# What their users do not make themselves: shown with what they have, not with how they are made.
GIVEN = {"BatchTask", "DrainResult", "Job", "JobContext", "ParsedCronItem", "Runner", "Task"}

# Public for other layers, not for programs that use the package.
INTERNAL = {
    "App": {"aenqueue", "enqueue", "find_enqueuer"},
    "Hooks": {
        "around_async",
        "around_sync",
        "around_thread",
        "drain",
        "emit",
        "has_listeners",
        "has_wrappers",
    },
    "Runner": {"run_on_connection"},
    "Task": {"job_options", "with_identifier"},
    "TaskRouter": {"find_enqueuer"},
}

# Of the methods that are called by Python, these say what one can do with an object.
SPECIAL = {"__init__", "__call__", "__await__", "__enter__", "__aenter__"}

# As wide as the sources are formatted.
WIDTH = 100

Function = ast.FunctionDef | ast.AsyncFunctionDef


def stubs(about: str) -> str:
    """Of a module and some of its names: each with a heading, its words and its signature."""
    module, names = named(about)
    return "\n".join(_section(module, name) for name in names)


def name_table(about: str) -> str:
    """The same as a table: for names that have a page of their own."""
    module, names = named(about)
    found = [(name, getattr(importlib.import_module(module), name)) for name in names]
    return table(["name", ""], [[code(name), _first_line(it)] for name, it in found])


def named(about: str) -> tuple[str, list[str]]:
    """`module: name name` as a module and its names."""
    module, _, names = about.partition(": ")
    return module, names.split()


def _section(module: str, name: str) -> str:
    found = getattr(importlib.import_module(module), name)
    # The same name may be in two modules, and a link leads to one of them.
    title = f"### {name}" if module == "graphile_worker" else f"### {_last(module)}.{name}"
    if found.__name__ != name:
        return f"{title}\n\nThe same as `{found.__name__}`, by another name.\n"
    words = inspect.getdoc(found) or ""
    stub = _Stub(textwrap.dedent(inspect.getsource(found))).text()
    return f"{title}\n\n{words}\n\n```pyi\n{stub}\n```\n"


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _first_line(it: Any) -> str:
    return (inspect.getdoc(it) or "").partition("\n")[0]


class _Stub:
    """One class or function as in a stub file."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        [self._node] = ast.parse(source).body

    def text(self) -> str:
        if isinstance(self._node, ast.ClassDef):
            return self._class(self._node)
        assert isinstance(self._node, Function)
        return self._header(self._node) + " ..."

    def _class(self, node: ast.ClassDef) -> str:
        fields = "".join(f"    {line}\n" for line in self._fields(node))
        # As stubs are formatted: a blank line only after those that say something.
        shown = [self._function(each) for each in _methods(node)]
        methods = "".join(f"    {each}\n" + "\n" * each.endswith('"') for each in shown)
        body = "\n".join(part for part in (fields, methods) if part).rstrip("\n")
        return self._header(node) + (f"\n{body}" if body else " ...")

    def _fields(self, node: ast.ClassDef) -> Iterator[str]:
        for each in node.body:
            if isinstance(each, ast.AnnAssign | ast.Assign) and _is_public(_target(each)):
                yield self._source(each)
            elif isinstance(each, Function) and each.name == "__init__":
                yield from _attributes(each)

    def _function(self, node: Function) -> str:
        said = (ast.get_docstring(node) or "").partition("\n")[0]
        if said:
            return f'{self._header(node)}\n        """{said}"""'
        return _within(WIDTH - 4, f"{self._header(node)} ...")

    def _header(self, node: Function | ast.ClassDef) -> str:
        """From the decorators to the colon, as it is written."""
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        body = node.body[0]
        text = "".join(self._lines[first - 1 : body.lineno])
        cut = len(self._lines[body.lineno - 1].encode()) - body.col_offset
        return text.encode()[:-cut].decode().strip()

    def _source(self, node: ast.stmt) -> str:
        return ast.get_source_segment("".join(self._lines), node) or ""


def _within(width: int, line: str) -> str:
    """The line of a method, its arguments on one of their own where it is too long."""
    if "\n" in line or len(line) <= width:
        return line
    name, _, rest = line.partition("(")
    arguments, _, result = rest.rpartition(") -> ")
    return f"{name}(\n        {arguments}\n    ) -> {result}"


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in SPECIAL


def _is_overload(node: Function) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)


def _is_setter(node: Function) -> bool:
    return any(isinstance(each, ast.Attribute) for each in node.decorator_list)


def _target(node: ast.AnnAssign | ast.Assign) -> str:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return target.id if isinstance(target, ast.Name) else "_"


def _methods(node: ast.ClassDef) -> Iterator[Function]:
    """Those that others may use; of one with overloads, these alone."""
    functions = [each for each in node.body if isinstance(each, Function)]
    overloaded = {each.name for each in functions if _is_overload(each)}
    hidden = INTERNAL.get(node.name, set()) | ({"__init__"} if node.name in GIVEN else set())
    for each in functions:
        if not _is_public(each.name) or each.name in hidden or _is_setter(each):
            continue
        if each.name not in overloaded or _is_overload(each):
            yield each


def _attributes(init: Function) -> Iterator[str]:
    """The public attributes that `__init__` sets, where it can be seen what they are."""
    kinds = {each.arg: each.annotation for each in init.args.args + init.args.kwonlyargs}
    for node in init.body:
        match node:
            case ast.Assign([ast.Attribute(attr=name)], ast.Name(id=given)) if _is_public(name):
                if kind := kinds.get(given):
                    yield f"{name}: {ast.unparse(kind)}"
            case ast.Assign([ast.Attribute(attr=name)], ast.Call(func=ast.Name(id=kind))):
                if _is_public(name) and kind[0].isupper():
                    yield f"{name}: {kind}"
            case ast.Assign([ast.Attribute(attr=name)], ast.Attribute() as of) if _is_public(name):
                yield f"{name} = {ast.unparse(of).removeprefix('self.')}"
            case ast.AnnAssign(ast.Attribute(attr=name), kind) if _is_public(name):
                yield f"{name}: {ast.unparse(kind)}"
