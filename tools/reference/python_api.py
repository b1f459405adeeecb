"""Write the public names of docs/reference/python.md with their signatures and docstrings.

They are taken from the text of the sources, which is formatted and the same in every version of
Python.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tools.reference.tables import code, table

# Classes that a user does not create: they are shown without `__init__`.
WITHOUT_INIT = {"BatchTask", "DrainResult", "Job", "ParsedCronItem", "Runner", "Task"}

# Methods that only the package calls.
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

# Special methods that are part of the interface of an object.
SPECIAL = {"__init__", "__call__", "__await__", "__enter__", "__aenter__"}

# The line length of the sources.
WIDTH = 100

Function = ast.FunctionDef | ast.AsyncFunctionDef


def stubs(arguments: str) -> str:
    """Return a section for each name of a module: its docstring and its signature."""
    module, names = parse_names(arguments)
    return "\n".join(_section(module, name) for name in names)


def name_table(arguments: str) -> str:
    """Return a table of names that have a separate page."""
    module, names = parse_names(arguments)
    objects = [(name, getattr(importlib.import_module(module), name)) for name in names]
    return table(["name", ""], [[code(name), _first_line(each)] for name, each in objects])


def parse_names(arguments: str) -> tuple[str, list[str]]:
    """Split `module: name name` into the module and its names."""
    module, _, names = arguments.partition(": ")
    return module, names.split()


def _section(module: str, name: str) -> str:
    documented = getattr(importlib.import_module(module), name)
    # Two modules can have the same name, and each needs its anchor.
    title = f"### {name}" if module == "graphile_worker" else f"### {_last(module)}.{name}"
    if documented.__name__ != name:
        return f"{title}\n\nAn alias of `{documented.__name__}`.\n"
    description = _as_markdown(inspect.getdoc(documented) or "")
    stub = _Stub(_get_source(documented)).text()
    return f"{title}\n\n{description}\n\n```pyi\n{stub}\n```\n"


def _get_source(documented: Any) -> str:
    """Return the source, with the constructor of a private base class."""
    source = textwrap.dedent(inspect.getsource(documented))
    base = documented.__mro__[1] if inspect.isclass(documented) else object
    if "__init__" not in vars(documented) and "graphile_worker._" in base.__module__:
        source = source.replace(f"({base.__name__})", "") + inspect.getsource(
            vars(base)["__init__"]
        )
    return source


def _as_markdown(docstring: str) -> str:
    """Turn the sections `Args:`, `Returns:` and `Raises:` of a docstring into Markdown."""
    parts = re.split(r"^(Args|Returns|Raises):\n", docstring, flags=re.MULTILINE)
    sections = [_section_as_markdown(*each) for each in zip(parts[1::2], parts[2::2], strict=True)]
    return "\n\n".join([parts[0].rstrip(), *sections])


def _section_as_markdown(title: str, body: str) -> str:
    # A line that is indented further continues the one before.
    text = re.sub(r"\n {5,}", " ", textwrap.indent(textwrap.dedent(body).strip(), "    "))
    lines = [line.strip() for line in text.splitlines()]
    if title == "Returns":
        return f"Returns: {' '.join(lines)}"
    items = [re.sub(r"^(\*{0,2}\w+):", r"- `\1`:", line) for line in lines]
    return f"{_TITLES[title]}\n\n" + "\n".join(items)


_TITLES = {"Args": "Arguments:", "Raises": "Raises:"}


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _first_line(it: Any) -> str:
    return (inspect.getdoc(it) or "").partition("\n")[0]


class _Stub:
    """A class or function as in a stub file."""

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
        # A blank line follows only methods with a docstring, as in formatted stubs.
        first_init = sorted(_methods(node), key=lambda each: each.name != "__init__")
        stubs = [self._function(each) for each in first_init]
        methods = "".join(f"    {each}\n" + "\n" * each.endswith('"') for each in stubs)
        body = "\n".join(part for part in (fields, methods) if part).rstrip("\n")
        return self._header(node) + (f"\n{body}" if body else " ...")

    def _fields(self, node: ast.ClassDef) -> Iterator[str]:
        for each, following in pairwise([*node.body, ast.Pass()]):
            if isinstance(each, ast.AnnAssign | ast.Assign) and _is_public(_target(each)):
                yield self._source(each)
                if _is_text(following):
                    yield self._source(following)
            elif isinstance(each, Function) and each.name == "__init__":
                yield from _attributes(each)

    def _function(self, node: Function) -> str:
        summary = (ast.get_docstring(node) or "").partition("\n")[0]
        if summary:
            return f'{self._header(node)}\n        """{summary}"""'
        return _within(WIDTH - 4, f"{self._header(node)} ...")

    def _header(self, node: Function | ast.ClassDef) -> str:
        """Return the source from the decorators to the colon."""
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        body = node.body[0]
        text = "".join(self._lines[first - 1 : body.lineno])
        cut = len(self._lines[body.lineno - 1].encode()) - body.col_offset
        return text.encode()[:-cut].decode().strip()

    def _source(self, node: ast.stmt) -> str:
        return ast.get_source_segment("".join(self._lines), node) or ""


def _within(width: int, line: str) -> str:
    """Break a line that is too long, with the arguments on a separate line."""
    if "\n" in line or len(line) <= width:
        return line
    name, _, rest = line.partition("(")
    arguments, _, result = rest.rpartition(") -> ")
    return f"{name}(\n        {arguments}\n    ) -> {result}"


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in SPECIAL


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_overload(node: Function) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)


def _is_setter(node: Function) -> bool:
    return any(isinstance(each, ast.Attribute) for each in node.decorator_list)


def _target(node: ast.AnnAssign | ast.Assign) -> str:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return target.id if isinstance(target, ast.Name) else "_"


def _methods(node: ast.ClassDef) -> Iterator[Function]:
    """Yield the public methods. Only the overloads of an overloaded method are yielded."""
    functions = [each for each in node.body if isinstance(each, Function)]
    overloaded = {each.name for each in functions if _is_overload(each)}
    hidden = INTERNAL.get(node.name, set()) | ({"__init__"} if node.name in WITHOUT_INIT else set())
    for each in functions:
        if not _is_public(each.name) or each.name in hidden or _is_setter(each):
            continue
        if each.name not in overloaded or _is_overload(each):
            yield each


def _attributes(init: Function) -> Iterator[str]:
    """Yield the public attributes that `__init__` sets, if their type is visible."""
    kinds = {each.arg: each.annotation for each in init.args.args + init.args.kwonlyargs}
    for node in init.body:
        match node:
            case ast.Assign([ast.Attribute(attr=name)], ast.Name(id=argument)) if _is_public(name):
                if kind := kinds.get(argument):
                    yield f"{name}: {ast.unparse(kind)}"
            case ast.Assign([ast.Attribute(attr=name)], ast.Call(func=ast.Name(id=kind))):
                if _is_public(name) and kind[0].isupper():
                    yield f"{name}: {kind}"
            case ast.Assign([ast.Attribute(attr=name)], ast.Attribute() as of) if _is_public(name):
                yield f"{name} = {ast.unparse(of).removeprefix('self.')}"
            case ast.AnnAssign(ast.Attribute(attr=name), kind) if _is_public(name):
                yield f"{name}: {ast.unparse(kind)}"
