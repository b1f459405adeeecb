"""The comparison: its figures were measured, and claims about other projects have a link."""

import re
from collections.abc import Iterator
from typing import Any

from benchmarks.report import RESULTS, read_results
from tests.laboratory import plots
from tests.support.pages import ROOT
from tests.support.tables import rows

PAGE = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
FIGURE = re.compile(r"[\d.,]*\d (?:jobs/s|ms|µs|×)")

# How docs/performance.md writes what is stored under a key.
FORMS = {
    "jobs_per_second": "{:,.0f} jobs/s",
    "one_by_one": "{:,.0f} jobs/s",
    "in_batches": "{:,.0f} jobs/s",
    "cpu_us_per_job": "{:.0f} µs",
    "min_ms": "{:.2f} ms",
    "p50_ms": "{:.2f} ms",
    "p99_ms": "{:.2f} ms",
}

# Where each project's own words are.
HOMES = {
    "Node": "https://worker.graphile.org/docs",
    "Rust": "https://leo91000.github.io/graphile_worker_rs/",
    "Procrastinate": "https://procrastinate.readthedocs.io/en/stable/",
    "PgQueuer": "https://janbjorge.github.io/pgqueuer/",
    "Oban": ("https://oban.pro/docs/py", "https://github.com/oban-bg/oban-py"),
    "Celery": "https://docs.celeryq.dev/en/stable/",
}


def measured() -> Iterator[str]:
    """Every figure of every run, as a page would write it."""
    for of in read_results(RESULTS).values():
        for result in of.values():
            for contender in result.get("contenders", {}).values():
                yield from figures(contender)


def figures(contender: dict[str, Any]) -> Iterator[str]:
    for key, form in FORMS.items():
        if key in contender:
            yield form.format(contender[key]["median"])


def told_of_others() -> list[list[str]]:
    """The tables of what others say: a project and its words."""
    return rows(PAGE.split("### ", 1)[1])


def test_every_figure_was_measured(figure):
    told = FIGURE.findall(PAGE)
    figure(f"figures of the comparison: {len(told)}, all measured by benchmarks/")

    assert len(told) > 20
    assert set(told) - set(measured()) == set()


def test_other_projects_are_faster_only_where_the_page_lists_it():
    newest = {
        name: of[max(of)]["contenders"]
        for name, of in read_results(RESULTS).items()
        if name in ("add", "latency")
    }
    batches = {name: each["in_batches"]["median"] for name, each in newest["add"].items()}
    single = {name: each["one_by_one"]["median"] for name, each in newest["add"].items()}
    waits = {name: each["p50_ms"]["median"] for name, each in newest["latency"].items()}

    assert {name for name, rate in batches.items() if rate > batches["ours"]} == {
        "node",
        "pgqueuer",
    }
    assert single["pgqueuer"] > single["ours"]
    assert max(waits, key=waits.__getitem__) == "ours"


def test_the_number_of_faults_is_that_of_the_runs():
    told = re.search(r"\(reliability\.md\) with ([\d,]+) faults", PAGE)

    assert told is not None
    assert told[1] == f"{plots.faults(plots.read_runs(plots.RESULTS)).total():,}"


def test_each_row_names_its_project():
    assert {row[0] for row in told_of_others()} == {"**this**", *HOMES}


def test_each_claim_about_another_project_links_to_its_documentation():
    for project, words in told_of_others():
        links = re.findall(r"\]\(([^)]+)\)", words)
        if project in HOMES:
            assert links, f"{project}: {words}"
            assert all(link.startswith(HOMES[project]) for link in links), links


def test_each_topic_starts_with_this_project():
    themes = PAGE.split("\n### ")[1:]

    assert len(themes) > 8
    assert all(theme.splitlines()[4].startswith("| **this** |") for theme in themes)


def test_the_page_has_the_date_of_its_sources():
    assert re.search(r"^Read on \d{4}-\d\d-\d\d", PAGE, re.MULTILINE)
