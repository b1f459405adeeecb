"""Write the pages of the Python reference that are not in the repository, for the site.

Every public class has a page with a section for each method. Functions and small classes share
pages.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import griffe

from tools.pages import find_headings
from tools.reference import api
from tools.reference.api import Item, Parameter, PublicName
from tools.reference.events import list_event_names
from tools.reference.tables import table

FOLDER = "reference/python"
INDEX = "reference/python.md"
WIDTH = 88

# Pages of more than one name, and their titles.
SHARED_PAGES = {
    "outcomes": ("Task outcomes", "Retry Snooze Discard PartialFailure Backoff"),
    "job-options": ("Job options", "JobOptions JobSpec JobKeyMode CleanupTask"),
    "cron-items": ("Cron items", "CronItem ParsedCronItem TimestampDigest"),
}
# Titles of the pages of modules. In other modules, a class has a page, and functions share one.
MODULE_PAGES = {
    "graphile_worker.contrib.dashboard": "Web dashboard",
    "graphile_worker.contrib.opentelemetry": "opentelemetry",
    "graphile_worker.contrib.prometheus": "prometheus",
    "graphile_worker.contrib.sentry": "sentry",
    "graphile_worker.contrib.structlog": "structlog",
    "graphile_worker.events": "Event classes",
    "graphile_worker.ops.diagnostics": "diagnostics",
}
# Pages of the repository that describe the classes of a module.
WRITTEN_PAGES = {
    "graphile_worker.errors": "reference/errors.md",
    "graphile_worker.options": "reference/options.md",
}

# In the repository, the events of the index link to the page of events.
EVENT_LINK = re.compile(r"\[(`\w+`)\]\(events\.md\)")
CODE = re.compile(r"(?<![`\[])`([\w.]+)`")


@dataclass(frozen=True)
class Page:
    """A page of the site, and the names that it describes."""

    path: str
    title: str
    names: tuple[PublicName, ...]


def build_pages() -> dict[str, str]:
    """Return the text of each page by its path in the folder of the documentation."""
    return {page.path: _build_page(page) for page in list_pages()}


def write_class_pages(docs: Path) -> None:
    """Write the pages into a folder with the other pages, and link to them from the index."""
    (docs / FOLDER).mkdir(parents=True)
    for path, text in build_pages().items():
        (docs / path).write_text(text, encoding="utf-8")
    index = docs / INDEX
    index.write_text(add_links(index.read_text(encoding="utf-8")), encoding="utf-8")


@cache
def list_pages() -> list[Page]:
    """Return the pages in the order of the index."""
    names: dict[tuple[str, str], list[PublicName]] = {}
    for name in [*api.list_names("python"), *list_event_names()]:
        names.setdefault(_place(name), []).append(name)
    return [
        Page(f"{FOLDER}/{stem}.md", title, tuple(these)) for (stem, title), these in names.items()
    ]


def _place(name: PublicName) -> tuple[str, str]:
    """Return the file name of the page of a name without its suffix, and the page's title."""
    module = name.module.rpartition(".")[2]
    if title := MODULE_PAGES.get(name.module):
        return module, title
    prefix = "" if name.module == api.PACKAGE else f"{module}-"
    if not isinstance(name.item, griffe.Class):
        return f"{prefix}functions", "Functions" if not prefix else f"{module} functions"
    for stem, (title, shared) in SHARED_PAGES.items():
        if not prefix and name.name in shared.split():
            return stem, title
    return prefix + name.name.lower(), name.title


# Navigation and links


def insert_navigation(settings: str) -> str:
    """Return the text of mkdocs.yml with these pages after the index, in its groups."""
    lines = ["      - Python classes:"]
    for group, pages in _group_pages().items():
        indent = " " * 10
        if len(pages) > 1:
            lines.append(f"{indent}- {group}:")
            indent += " " * 4
        lines += [f"{indent}- {page.title}: {page.path}" for page in pages]
    index = f"      - Python: {INDEX}\n"
    assert index in settings
    return settings.replace(index, index + "\n".join(lines) + "\n")


def _group_pages() -> dict[str, list[Page]]:
    """Return the pages by the heading of the index that lists their first name."""
    text = api.INDEX.read_text(encoding="utf-8")
    groups: dict[str, list[Page]] = {}
    headings = [each for each in find_headings(text) if each.level == 2]
    for page in list_pages():
        # The names of the shared page of functions are in several groups.
        group = page.title
        start = text.find(f"\n### {page.names[0].title}\n")
        if page.title != "Functions" and start > 0:
            group = [each.text for each in headings if each.start < start][-1]
        groups.setdefault(group.strip("`").removeprefix("graphile_worker."), []).append(page)
    return groups


def add_links(index: str) -> str:
    """Return the index of the site, whose names link to their pages."""
    targets, lines = list_targets(), []
    owner = ""
    for line in index.splitlines():
        title = line.removeprefix("### ")
        if line.startswith("### ") and title in targets:
            owner = title
            line = f"### [{title}]({_relative(targets[title], INDEX)})"
        elif line.startswith(("Methods: ", "Properties: ")):
            line = _link_names(line, INDEX, owner)
        elif line.startswith("[`"):
            line = EVENT_LINK.sub(lambda link: _link_names(link[1], INDEX), line)
        lines.append(line)
    return "\n".join(lines) + "\n"


@cache
def list_targets() -> dict[str, str]:
    """Return the path and anchor of each public name and of each method."""
    targets = {}
    for name in api.list_names("names"):
        if path := WRITTEN_PAGES.get(name.item.module.path):
            targets[name.name] = f"{path}#{name.name.lower()}"
    for page in list_pages():
        for name in page.names:
            anchor = "" if page.title == name.title else f"#{name.name.lower()}"
            targets[name.title] = page.path + anchor
            targets.setdefault(name.name, page.path + anchor)
            if isinstance(name.item, griffe.Class):
                for method in api.list_methods(name.item):
                    targets[f"{name.title}.{method.name}"] = f"{page.path}#{method.name}"
    return targets


def _relative(target: str, page: str) -> str:
    """Return a link from a page. Both are in docs/reference or in its folder for Python."""
    path, hash_, anchor = target.partition("#")
    if path == page and hash_:
        return f"#{anchor}"
    return hash_.join([_relative_path(Path(path), Path(page)), anchor])


def _relative_path(path: Path, page: Path) -> str:
    up = "../" if page.parent.name == "python" and path.parent != page.parent else ""
    down = "python/" if path.parent.name == "python" and path.parent != page.parent else ""
    return f"{up}{down}{path.name}"


def _link_names(text: str, page: str, owner: str = "") -> str:
    """Return a text in which the names of the API are links. `owner` is the class around it."""
    targets = list_targets()

    def link(match: re.Match[str]) -> str:
        name = match[1].removeprefix("graphile_worker.")
        target = targets.get(f"{owner}.{name}") or targets.get(name)
        return f"[{match[0]}]({_relative(target, page)})" if target else match[0]

    return CODE.sub(link, text)


# Pages


def _build_page(page: Page) -> str:
    blocks = [f"# {page.title}"]
    if [page.title] == [name.title for name in page.names]:
        blocks += _describe(page.names[0], page, "##")
    else:
        [module] = {name.module for name in page.names}
        blocks.append(f"Import these names from `{module}`.")
        for name in page.names:
            blocks += [f"## {name.name}", *_describe(name, page, "###")]
    return "\n\n".join(each.strip() for each in blocks if each) + "\n"


def _describe(name: PublicName, page: Page, level: str) -> Iterator[str]:
    """Yield the blocks of a public name, below its heading."""
    item = name.item
    if isinstance(item, griffe.Attribute):
        yield _link_names(f"Another name of `{item.value}`.", page.path)
    elif isinstance(item, griffe.Function):
        yield from _describe_function(item, page, "")
    elif isinstance(item, griffe.Class):
        yield from _describe_class(item, name, page, level)


def _describe_class(item: griffe.Class, name: PublicName, page: Page, level: str) -> Iterator[str]:
    if level == "##":
        yield _code([f"from {name.module} import {name.name}"])
    yield _prose(item, page, name.title)
    is_event = name.module == "graphile_worker.events"
    if is_event and (event_name := _get_event_name(item)):
        yield f"Name: `{event_name}`."
    if statements := api.list_statements(item):
        yield f"Use it with {' or '.join(f'`{each}`' for each in statements)}."
    if init := api.find_init(item):
        if not is_event:
            yield _code(_signature(each, name.name) for each in api.list_overloads(init))
        kind = "field" if is_event else "parameter"
        yield _parameters(kind, api.list_init_parameters(item), page)
    yield _attributes(item, page)
    yield _raises(item, page)
    yield _inherited(item, page)
    for method in api.list_methods(item):
        # Without code marks, two underscores would make the name bold.
        yield f"{level} {_span(method.name) if method.name in api.SPECIAL else method.name}"
        if isinstance(method, griffe.Function):
            yield from _describe_function(method, page, name.title)
        else:
            yield _code([f"{method.name}: {method.annotation}"])
            yield _prose(method, page, name.title)
            yield _raises(method, page)


def _get_event_name(item: griffe.Class) -> str:
    name = item.members.get("name")
    value = str(name.value) if isinstance(name, griffe.Attribute) and name.value else ""
    return value.strip("'\"")


def _describe_function(item: griffe.Function, page: Page, owner: str) -> Iterator[str]:
    yield _code(_signature(each) for each in api.list_overloads(item))
    yield _prose(item, page, owner)
    yield _parameters("parameter", api.list_parameters(item), page)
    if returns := api.get_returns(item):
        yield f"**Returns:** {_link_names(returns, page.path, owner)}"
    yield _raises(item, page)


def _prose(item: Item, page: Page, owner: str) -> str:
    return _link_names(api.get_description(item), page.path, owner)


def _inherited(item: griffe.Class, page: Page) -> str:
    """Return the members of public base classes."""
    for base in api.list_bases(item):
        found = api.find(base, None) if base in list_targets() else None
        if isinstance(found, griffe.Class) and (methods := api.list_methods(found)):
            names = ", ".join(_link_names(f"`{each.name}`", page.path, base) for each in methods)
            return f"Inherited from {_link_names(f'`{base}`', page.path)}: {names}."
    return ""


def _raises(item: Item, page: Page) -> str:
    raised = api.get_raises(item).items()
    lines = [f"- {_link_names(f'`{error}`', page.path)}: {reason}" for error, reason in raised]
    return "\n".join(["**Raises:**", "", *lines]) if lines else ""


def _parameters(kind: str, parameters: list[Parameter], page: Page) -> str:
    if not parameters:
        return ""
    rows = [
        [_span(each.name), _span(each.type), _span(each.default), _cell(each.description, page)]
        for each in parameters
    ]
    return table([kind, "type", "default", "description"], rows)


def _attributes(item: griffe.Class, page: Page) -> str:
    attributes = api.list_attributes(item)
    if not attributes:
        return ""
    head = ["attribute", "type", "description"]
    if api.is_enum(item):
        head = ["member", "value", "description"]
    rows = [
        [_span(each.name), _span(each.type), _cell(_get_text(item, each), page)]
        for each in attributes
    ]
    return table(head, rows)


def _get_text(item: griffe.Class, attribute: Parameter) -> str:
    """Return the description of an attribute. Another page describes the findings of doctor."""
    if item.name != "FindingId":
        return attribute.description
    anchor = attribute.type.strip("'\"")
    return f"[Cause and fix](../../operations/troubleshooting.md#{anchor})"


def _span(text: str) -> str:
    # Markdown on the site does not take a bar in code for the end of a cell.
    return f"`{text}`" if text else ""


def _cell(text: str, page: Page) -> str:
    return _link_names(text, page.path).replace("|", "\\|")


# Signatures


def _code(lines: Iterable[str]) -> str:
    return "\n".join(["```pyi", *lines, "```"])


def _signature(function: griffe.Function, name: str = "") -> str:
    """Return a function as in a stub file, or the call of a class with this name."""
    parameters = list(_format_parameters(function))
    result = "" if name else f" -> {function.returns or 'None'}"
    keyword = "" if name else "async def " if "async" in function.labels else "def "
    start = f"{keyword}{name or function.name}("
    line = f"{start}{', '.join(parameters)}){result}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([start, *(f"    {each}," for each in parameters), f"){result}"])


def _format_parameters(function: griffe.Function) -> Iterator[str]:
    kind = griffe.ParameterKind
    previous = None
    for each in function.parameters:
        if each.name in {"self", "cls"}:
            continue
        if previous is kind.positional_only and each.kind is not kind.positional_only:
            yield "/"
        if each.kind is kind.keyword_only and previous not in {
            kind.keyword_only,
            kind.var_positional,
        }:
            yield "*"
        previous = each.kind
        annotation = f": {each.annotation}" if each.annotation else ""
        stars = api.STARS.get(each.kind, "") if each.kind else ""
        default = "" if stars or each.default is None else f" = {api.format_default(each.default)}"
        yield f"{stars}{each.name}{annotation}{default}"
    if previous is kind.positional_only:
        yield "/"
