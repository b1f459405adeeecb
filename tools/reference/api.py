"""The public Python API, read from the sources by griffe: names, signatures and docstrings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import griffe

from tools.pages import DOCS, ROOT, find_part_names

INDEX = DOCS / "reference" / "python.md"
PACKAGE = "graphile_worker"

# Classes that users do not create. Their pages have attributes and no constructor.
WITHOUT_INIT = {
    "Attempt",
    "BatchTask",
    "DrainResult",
    "ExternalTask",
    "Finding",
    "Job",
    "JobStatus",
    "ParsedCronItem",
    "Progress",
    "RecordedContext",
    "Report",
    "Runner",
    "SyncRecordedContext",
    "Task",
}

# Methods that only the package calls.
INTERNAL = {
    "App": {"aenqueue", "enqueue", "find_enqueuer"},
    "Hooks": {
        "around_async",
        "around_sync",
        "around_sync_only",
        "around_thread",
        "drain",
        "emit",
        "has_listeners",
        "has_wrappers",
    },
    "Runner": {"run_on_connection"},
    "Task": {"job_options", "signature", "with_identifier"},
    "TaskRouter": {"find_enqueuer", "find_retention"},
}

# Special methods that have a section. One sentence of a class page names the statements below.
SPECIAL = {"__call__"}
STATEMENTS = {"__enter__": "with", "__aenter__": "async with", "__await__": "await"}

# A docstring refers to the object that describes the parameters it leaves out.
SEE = re.compile(r"\bSee `([\w.]+)`")

STARS = {
    griffe.ParameterKind.var_positional: "*",
    griffe.ParameterKind.var_keyword: "**",
}

Item = griffe.Module | griffe.Class | griffe.Function | griffe.Attribute


@dataclass(frozen=True)
class Parameter:
    """A parameter or attribute. An empty text means that it has no such part."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True)
class PublicName:
    """A name that the index lists."""

    module: str
    name: str

    @property
    def title(self) -> str:
        """Return the name in headings: modules other than the package itself are its prefix."""
        prefix = "" if self.module == PACKAGE else self.module.rpartition(".")[2] + "."
        return prefix + self.name

    @property
    def item(self) -> Item:
        return resolve(f"{self.module}.{self.name}")


def parse_names(arguments: str) -> list[PublicName]:
    """Split `module: name name` into names."""
    module, _, names = arguments.partition(": ")
    return [PublicName(module, name) for name in names.split()]


@cache
def list_names(kind: str) -> list[PublicName]:
    """Return the names of one kind of generated parts of the index, in its order."""
    parts = [part.partition(" ") for part in find_part_names(INDEX.read_text(encoding="utf-8"))]
    return [name for key, _, arguments in parts if key == kind for name in parse_names(arguments)]


class LazyDataclasses(griffe.Extension):
    """Shows griffe subclasses of LazyDataclass as the dataclasses that they are at run time."""

    def on_package(self, *, pkg: griffe.Module, **_arguments: Any) -> None:
        module = pkg["_support.lazy_dataclass"]
        for each in _iter_classes(pkg):
            bases = [base.name for base in each.mro() if base.module is module]
            if bases and each.module is not module:
                kw_only = str(bases[0] == "LazyKeywordDataclass")
                decorator = griffe.ExprCall(
                    griffe.ExprName("dataclass", parent=module),
                    [griffe.ExprKeyword("kw_only", kw_only)],
                )
                each.decorators.append(griffe.Decorator(decorator, lineno=None, endlineno=None))


def _iter_classes(parent: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    for each in parent.members.values():
        if isinstance(each, griffe.Class):
            yield each
        if isinstance(each, griffe.Module | griffe.Class):
            yield from _iter_classes(each)


@cache
def _load() -> griffe.Module:
    loaded = griffe.load(
        PACKAGE,
        extensions=griffe.load_extensions(LazyDataclasses),
        # The parameters of overloads are not those of the implementation.
        docstring_options={"warnings": False, "warn_unknown_params": False},
        search_paths=[ROOT / "src"],
        docstring_parser="google",
        allow_inspection=False,
        resolve_aliases=True,
    )
    assert isinstance(loaded, griffe.Module)
    return loaded


def resolve(path: str) -> Item:
    """Return the object with this full name, where it is defined."""
    found: Any = _load()
    for part in path.removeprefix(PACKAGE).strip(".").split("."):
        found = found.all_members[part] if part else found
        found = found.final_target if found.is_alias else found
    assert isinstance(found, Item)
    return found


def find(name: str, near: Item | None) -> Item | None:
    """Find the object that a docstring names: a member of a class, or a public name."""
    if near is not None and not name.startswith(f"{PACKAGE}."):
        candidates = [f"{near.path}.{name}", f"{PACKAGE}.{name}"]
    else:
        candidates = [name]
    for path in candidates:
        try:
            return resolve(path)
        except KeyError:
            continue
    return None


# Docstrings


def get_description(item: Item) -> str:
    """Return the docstring without its sections, for example `Args`."""
    return "\n\n".join(section.value for section in _list_sections(item, "text"))


def get_summary(item: Item) -> str:
    """Return the first paragraph of the docstring in one line."""
    return _join_lines(get_description(item).partition("\n\n")[0])


def get_returns(item: Item) -> str:
    """Return the description of the result."""
    for each in _follow(item):
        if sections := _list_sections(each, "returns"):
            return _join_lines(sections[0].value[0].description)
    return ""


def get_raises(item: Item) -> dict[str, str]:
    """Return the errors by name, each with its reason."""
    for each in _follow(item):
        if sections := _list_sections(each, "raises"):
            return {str(it.annotation): _join_lines(it.description) for it in sections[0].value}
    return {}


def _describe(item: Item, name: str) -> str:
    """Return the description of a parameter or attribute."""
    for each in _follow(item):
        sections = _list_sections(each, "parameters") + _list_sections(each, "attributes")
        for it in (it for section in sections for it in section.value):
            if it.name.lstrip("*") == name:
                return _join_lines(it.description)
        member = each.all_members.get(name) if isinstance(each, griffe.Class) else None
        if member is not None and not member.is_function and member.docstring:
            return _join_lines(member.docstring.value)
    return ""


def _follow(item: Item) -> Iterator[Item]:
    """Yield the object, and those that its docstring refers to with "See"."""
    yield item
    for match in SEE.finditer(get_description(item)):
        found = find(match[1], item.parent if not isinstance(item, griffe.Class) else None)
        if found is not None and found is not item:
            yield from _follow(found)


def _list_sections(item: Item, kind: str) -> list[Any]:
    sections = item.docstring.parsed if item.docstring else []
    return [each for each in sections if each.kind.value == kind]


def _join_lines(text: str) -> str:
    return " ".join(text.split())


# Functions


def list_overloads(function: griffe.Function) -> list[griffe.Function]:
    """Return the overloads of a function, or the function itself."""
    return function.overloads or [function]


def list_parameters(function: griffe.Function) -> list[Parameter]:
    """Return the parameters of all overloads."""
    described = function.parent if function.name == "__init__" else function
    return _read_parameters(function, described)


def _read_parameters(function: griffe.Function, described: Item | None) -> list[Parameter]:
    found: dict[str, Parameter] = {}
    for each in (each for it in list_overloads(function) for each in it.parameters):
        if each.name not in {"self", "cls"}:
            stars = STARS.get(each.kind, "") if each.kind else ""
            default = "" if stars else format_default(each.default)
            description = _describe(described, each.name) if described else ""
            kind = str(each.annotation or "")
            found.setdefault(each.name, Parameter(stars + each.name, kind, default, description))
    return list(found.values())


def format_default(default: Any) -> str:
    """Return a default value. A constant is replaced by its value."""
    if isinstance(default, griffe.ExprName) and default.name.isupper():
        constant = _load().modules_collection.get_member(default.canonical_path)
        value = constant.final_target.value if constant.is_alias else constant.value
        return str(value)
    return "" if default is None else str(default)


# Classes


def find_init(item: griffe.Class) -> griffe.Function | None:
    """Return the constructor, unless users do not call it."""
    hidden = item.name in WITHOUT_INIT or is_enum(item) or _has_base(item, "Protocol", "TypedDict")
    if hidden or "__init__" not in item.all_members:
        return None
    init = resolve(f"{item.path}.__init__")
    return init if isinstance(init, griffe.Function) else None


def list_init_parameters(item: griffe.Class) -> list[Parameter]:
    """Return the parameters of the constructor, which the docstring of the class describes."""
    init = find_init(item)
    return _read_parameters(init, item) if init else []


def is_enum(item: griffe.Class) -> bool:
    return _has_base(item, "StrEnum")


def _has_base(item: griffe.Class, *names: str) -> bool:
    return any(str(base).partition("[")[0] in names for base in item.bases)


def list_bases(item: griffe.Class) -> list[str]:
    """Return the names of the base classes, without their type parameters."""
    return [str(base).partition("[")[0] for base in item.bases]


def list_attributes(item: griffe.Class) -> list[Parameter]:
    """Return the public attributes that are not parameters of the constructor, or inherited."""
    known = {each.name for each in list_init_parameters(item)}
    known |= {name for base in item.mro() for name in base.all_members}
    return [
        _read_attribute(item, each)
        for each in _list_members(item)
        if isinstance(each, griffe.Attribute) and not is_property(each)
        if each.name not in known
    ]


def _read_attribute(item: griffe.Class, attribute: griffe.Attribute) -> Parameter:
    value = "" if attribute.value is None else str(attribute.value)
    kind = str(attribute.annotation or "")
    init = item.members.get("__init__")
    if not kind and isinstance(init, griffe.Function):
        # `self.name = name` has the type of the parameter.
        kind = next((str(each.annotation) for each in init.parameters if each.name == value), "")
    if is_enum(item):
        kind = value
    for section in [] if kind else _list_sections(item, "attributes"):
        kind = next(str(it.annotation or "") for it in section.value if it.name == attribute.name)
    return Parameter(attribute.name, kind, "", _describe(item, attribute.name))


def list_methods(item: griffe.Class) -> list[griffe.Function | griffe.Attribute]:
    """Return the public methods and properties."""
    return [
        each
        for each in _list_members(item)
        if isinstance(each, griffe.Function)
        or (isinstance(each, griffe.Attribute) and is_property(each))
    ]


def is_property(item: Item) -> bool:
    return "property" in item.labels


def list_statements(item: griffe.Class) -> list[str]:
    """Return the statements that an object of this class can be used with."""
    return [statement for name, statement in STATEMENTS.items() if name in item.all_members]


def _list_members(item: griffe.Class) -> list[Item]:
    hidden = INTERNAL.get(item.name, set())
    public = [
        member
        for name, member in item.members.items()
        if name in SPECIAL or not name.startswith("_")
        if name not in hidden
    ]
    return [it for it in public if isinstance(it, Item)]
