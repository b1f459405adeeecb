"""The page, sort order and filter of the live view, and the keys that change them."""

import re
from dataclasses import dataclass, replace
from enum import Enum, IntEnum


class Page(IntEnum):
    """The pages, by the key that shows them."""

    OVERVIEW = 1
    TASKS = 2
    RUNNING = 3
    WORKERS = 4
    ALERTS = 5
    ENDED = 6


class TaskSort(Enum):
    """The column that tasks are sorted by."""

    OLDEST = "oldest"
    READY = "ready"
    RUNNING = "running"
    FAILING = "failing"
    NAME = "name"


# Keys other than printable characters have a name.
KEY_NAMES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "down"),
    **dict.fromkeys(("\r", "\n"), "enter"),
    **dict.fromkeys(("\x7f", "\x08"), "backspace"),
    **dict.fromkeys(("\x03", "\x04"), "quit"),
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b": "escape",
}
# An escape sequence, complete or cut off, or one character.
INPUT_PATTERN = re.compile(r"\x1b[\[O][^@-~]*[@-~]?|.", re.DOTALL)
CURSOR_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1, "page down": 10, "page up": -10}


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The choices of the user."""

    page: Page = Page.OVERVIEW
    sort: TaskSort = TaskSort.OLDEST
    filter: str = ""
    is_editing_filter: bool = False
    cursor: int = 0
    has_detail: bool = False
    is_paused: bool = False
    has_help: bool = False
    is_closed: bool = False


def read_keys(text: str) -> list[str]:
    """Read terminal input as keys, without unknown keys."""
    keys = [KEY_NAMES.get(each, each) for each in INPUT_PATTERN.findall(text)]
    return [key for key in keys if key.isprintable()]


def handle_key(view: View, key: str) -> View:
    """Return the view after a key."""
    if key == "quit":
        return replace(view, is_closed=True)
    if view.is_editing_filter:
        return _edit_filter(view, key)
    if view.has_help and key != "q":
        return replace(view, has_help=False)
    if key in CURSOR_STEPS:
        return replace(view, cursor=max(0, view.cursor + CURSOR_STEPS[key]))
    match key:
        case "1" | "2" | "3" | "4" | "5" | "6":
            return replace(view, page=Page(int(key)), cursor=0, has_detail=False)
        case "q":
            return replace(view, is_closed=True)
        case "p" | " ":
            return replace(view, is_paused=not view.is_paused)
        case "s":
            sorts = list(TaskSort)
            next_sort = sorts[(sorts.index(view.sort) + 1) % len(sorts)]
            return replace(view, sort=next_sort, cursor=0)
        case "/":
            return replace(view, is_editing_filter=True)
        case "?" | "h":
            return replace(view, has_help=True)
        case "enter":
            return replace(view, has_detail=not view.has_detail)
        case "escape":
            return replace(view, has_detail=False, filter="", cursor=0)
    return view


def _edit_filter(view: View, key: str) -> View:
    match key:
        case "enter":
            return replace(view, is_editing_filter=False)
        case "escape":
            return replace(view, is_editing_filter=False, filter="", cursor=0)
        case "backspace":
            return replace(view, filter=view.filter[:-1], cursor=0)
    return replace(view, filter=view.filter + key, cursor=0) if len(key) == 1 else view
