"""View: what somebody chose to see, and how a key changes it."""

from dataclasses import dataclass, replace
from enum import Enum, IntEnum


class Page(IntEnum):
    """By the key that shows it."""

    OVERVIEW = 1
    TASKS = 2
    RUNNING = 3
    WORKERS = 4
    ATTENTION = 5


class Sort(Enum):
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
    LEAVE = "leave"


Pressed = str | Key

STEPS = {
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

    page: Page = Page.OVERVIEW
    sort: Sort = Sort.OLDEST
    filter: str = ""
    is_typing: bool = False
    cursor: int = 0
    has_detail: bool = False
    is_paused: bool = False
    has_help: bool = False
    is_over: bool = False


def pressed(view: View, key: Pressed) -> View:
    """What is to be seen after that key."""
    if key is Key.LEAVE:
        return replace(view, is_over=True)
    if view.is_typing:
        return _typed(view, key)
    if view.has_help and key != "q":
        return replace(view, has_help=False)
    if key in STEPS:
        return replace(view, cursor=max(0, view.cursor + STEPS[key]))
    if isinstance(key, str) and key in "12345":
        return replace(view, page=Page(int(key)), cursor=0, has_detail=False)
    match key:
        case "q":
            return replace(view, is_over=True)
        case "p" | " ":
            return replace(view, is_paused=not view.is_paused)
        case "s":
            return replace(view, sort=_next_sort(view.sort), cursor=0)
        case "/":
            return replace(view, is_typing=True)
        case "?" | "h":
            return replace(view, has_help=True)
        case Key.ENTER:
            return replace(view, has_detail=not view.has_detail)
        case Key.ESCAPE:
            return replace(view, has_detail=False, filter="", cursor=0)
    return view


def _typed(view: View, key: Pressed) -> View:
    match key:
        case Key.ENTER:
            return replace(view, is_typing=False)
        case Key.ESCAPE:
            return replace(view, is_typing=False, filter="", cursor=0)
        case Key.BACKSPACE:
            return replace(view, filter=view.filter[:-1], cursor=0)
        case str():
            return replace(view, filter=view.filter + key, cursor=0)
    return view


def _next_sort(sort: Sort) -> Sort:
    all_of_them = list(Sort)
    return all_of_them[(all_of_them.index(sort) + 1) % len(all_of_them)]
