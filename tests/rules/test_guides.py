"""What the founding documents warn of stands in the guides, and where it helps in docstrings."""

import inspect
import re
from typing import Any

import pytest

from graphile_worker import JobKeyMode, jobs, quick_add_job, sync
from tests.support.pages import ROOT

COMMENT = re.compile(r"<!-- features: ([F\d ]+) -->")


def section_of(mark: pytest.MarkDecorator, page: str, *words: str) -> Any:
    """The section of a page that a feature's comment stands in, and words that it must have."""
    (feature,) = mark.args
    return pytest.param(feature, page, words, marks=mark, id=feature)


SAID = [
    section_of(
        pytest.mark.feature("F53"),
        "guides/adding-jobs.md",
        "new connection at each call",
        "scripts only",
    ),
    section_of(
        pytest.mark.feature("F71"),
        "guides/unique-jobs.md",
        "`replace`",
        "pushes further away",
        "`preserve_run_at`",
    ),
    section_of(
        pytest.mark.feature("F74"),
        "guides/unique-jobs.md",
        "`unsafe_dedupe` is dangerous",
        "may never happen",
        "permanently failed",
    ),
    section_of(
        pytest.mark.feature("F85"),
        "guides/unique-jobs.md",
        "All tasks share one namespace",
        "Put the task name into the key",
    ),
    section_of(
        pytest.mark.feature("F93"),
        "guides/named-queues.md",
        "user, account or resource",
        "not worker groups",
    ),
    section_of(pytest.mark.feature("F109"), "guides/tasks.md", "Await everything it started"),
    section_of(
        pytest.mark.feature("F110"),
        "guides/tasks.md",
        "one thing",
        "`ctx.transaction()`",
        "exactly once",
    ),
    section_of(
        pytest.mark.feature("F244"),
        "guides/unique-jobs.md",
        "printable ASCII",
        "Other characters work",
    ),
    section_of(
        pytest.mark.feature("F266"),
        "guides/cron.md",
        "Set an `id` and never change it",
        "run twice",
    ),
    section_of(
        pytest.mark.feature("F279"),
        "guides/cron.md",
        "slows down startup",
        "a little above the longest time",
    ),
    section_of(
        pytest.mark.feature("F280"),
        "guides/cron.md",
        "a few dozen items",
        "not one per user",
    ),
]


def told_from(page: str, feature: str) -> str:
    """What stands from the heading above a feature's comment on, in one line."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    [at] = [match.start() for match in COMMENT.finditer(text) if feature in match[1].split()]
    return " ".join(text[text.rindex("\n#", 0, at) if "\n#" in text[:at] else 0 :].split())


@pytest.mark.parametrize(("feature", "page", "words"), SAID)
def test_the_guide_contains_the_documented_facts(feature, page, words):
    told = told_from(page, feature)

    assert [each for each in words if each not in told] == []


@pytest.mark.feature("F53")
@pytest.mark.parametrize("function", [quick_add_job, sync.quick_add_job])
def test_the_docstring_of_an_ad_hoc_add_names_its_cost(function):
    told = inspect.getdoc(function) or ""

    assert "scripts only" in told
    assert "each call opens a connection" in told


@pytest.mark.feature("F74")
def test_the_docstring_of_unsafe_dedupe_warns():
    told = inspect.getsource(jobs).split(f'"{JobKeyMode.UNSAFE_DEDUPE}"')[1].split('"""')[1]

    assert "Dangerous" in told
    assert "the job that you add may never run" in " ".join(told.split())
