"""View: what somebody chose to see, and how a key changes it."""

from dataclasses import dataclass, replace
from enum import Enum, IntEnum


class ScreenPage(IntEnum):
    """By the key that shows it."""

    OVERVIEW = 1
    TASKS = 2
    RUNNING = 3
    WORKERS = 4
    ALERTS = 5


class TaskSort(Enum):
    """What tasks are sorted by, the most first."""

    OLDEST = "oldest"
    READY = "ready"
    RUNNING = "running"
    FAILING = "failing"
    NAME = "name"


class Key(Enum):
    """Keys that are no letters."""

    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    ENTER = "enter"
    ESCAPE = "escape"
    BACKSPACE = "backspace"
    QUIT = "leave"


KeyPress = str | Key

CURSOR_STEPS = {
    "j": 1,
    Key.DOWN: 1,
    "k": -1,
    Key.UP: -1,
    Key.PAGE_DOWN: 10,
    Key.PAGE_UP: -10,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A page, what is sorted, filtered and chosen on it, and whether it goes on."""

    page: ScreenPage = ScreenPage.OVERVIEW
    sort: TaskSort = TaskSort.OLDEST
    filter: str = ""
    is_editing_filter: bool = False
    cursor: int = 0
    has_detail: bool = False
    is_paused: bool = False
    has_help: bool = False
    is_closed: bool = False


def handle_key(view: View, key: KeyPress) -> View:
    """What is to be seen after that key."""
    if key is Key.QUIT:
        return replace(view, is_closed=True)
    if view.is_editing_filter:
        return _edit_filter(view, key)
    if view.has_help and key != "q":
        return replace(view, has_help=False)
    if key in CURSOR_STEPS:
        return replace(view, cursor=max(0, view.cursor + CURSOR_STEPS[key]))
    if isinstance(key, str) and key in "12345":
        return replace(view, page=ScreenPage(int(key)), cursor=0, has_detail=False)
    match key:
        case "q":
            return replace(view, is_closed=True)
        case "p" | " ":
            return replace(view, is_paused=not view.is_paused)
        case "s":
            return replace(view, sort=_next_sort(view.sort), cursor=0)
        case "/":
            return replace(view, is_editing_filter=True)
        case "?" | "h":
            return replace(view, has_help=True)
        case Key.ENTER:
            return replace(view, has_detail=not view.has_detail)
        case Key.ESCAPE:
            return replace(view, has_detail=False, filter="", cursor=0)
    return view


def _edit_filter(view: View, key: KeyPress) -> View:
    match key:
        case Key.ENTER:
            return replace(view, is_editing_filter=False)
        case Key.ESCAPE:
            return replace(view, is_editing_filter=False, filter="", cursor=0)
        case Key.BACKSPACE:
            return replace(view, filter=view.filter[:-1], cursor=0)
        case str():
            return replace(view, filter=view.filter + key, cursor=0)
    return view


def _next_sort(sort: TaskSort) -> TaskSort:
    all_of_them = list(TaskSort)
    return all_of_them[(all_of_them.index(sort) + 1) % len(all_of_them)]
