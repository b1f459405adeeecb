"""Write the public names of docs/reference/python.md with their summaries and methods."""

import griffe

from tools.reference import api
from tools.reference.api import PublicName, parse_names
from tools.reference.tables import code


def sections(arguments: str) -> str:
    """Return a section for each name: its summary, and its properties and methods."""
    return "\n".join(f"{_section(name)}\n" for name in parse_names(arguments))


def name_list(arguments: str) -> str:
    """Return names that another page describes, as links."""
    return ", ".join(_link(each) for each in parse_names(arguments)) + ".\n"


def _link(name: PublicName) -> str:
    page = name.item.module.path.rpartition(".")[2]
    # The page of events has no section for each event.
    anchor = "" if page == "events" else f"#{name.name.lower()}"
    return f"[`{name.name}`]({page}.md{anchor})"


def _section(name: PublicName) -> str:
    item = name.item
    if isinstance(item, griffe.Attribute):
        return f"### {name.title}\n\nAnother name of `{item.value}`."
    blocks = [f"### {name.title}", api.get_summary(item)]
    if isinstance(item, griffe.Class):
        methods = api.list_methods(item)
        called = [each.name for each in methods if not api.is_property(each)]
        properties = [each.name for each in methods if api.is_property(each)]
        if twin := _find_twin(name, called):
            blocks.append(f"Its methods are those of [`{twin.title}`](#{twin.title.lower()}).")
        elif called:
            blocks.append(f"Methods: {code(*called)}.")
        if properties:
            blocks.append(f"Properties: {code(*properties)}.")
        titles = {each.title for each in api.list_names("python")}
        bases = [each for each in api.list_bases(item) if each in titles]
        if bases:
            blocks.append(f"It also has the members of [`{bases[0]}`](#{bases[0].lower()}).")
    return "\n\n".join(blocks)


def _find_twin(name: PublicName, methods: list[str]) -> PublicName | None:
    """Return an earlier class with the same methods, for example the async one."""
    for other in api.list_names("python"):
        if other == name or not methods:
            return None
        item = other.item
        found = api.list_methods(item) if isinstance(item, griffe.Class) else []
        if methods == [each.name for each in found]:
            return other
    return None
