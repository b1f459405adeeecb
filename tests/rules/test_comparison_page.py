"""The comparison: its figures were measured, and claims about other projects have a link."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from benchmarks.report import RESULTS, count_jobs_run, read_results, report
from tests.laboratory import plots
from tests.support.pages import ROOT
from tools.features import split_cells

PAGE = (ROOT / "docs/get-started/comparison.md").read_text(encoding="utf-8")
FIGURE = re.compile(r"[\d.,]*\d (?:jobs/s|ms|µs|×)")

# How docs/about/benchmarks.md writes what is stored under a key.
FORMS = {
    "jobs_per_second": "{:,.0f} jobs/s",
    "one_by_one": "{:,.0f} jobs/s",
    "in_batches": "{:,.0f} jobs/s",
    "cpu_us_per_job": "{:.0f} µs",
    "min_ms": "{:.2f} ms",
    "p50_ms": "{:.2f} ms",
    "p99_ms": "{:.2f} ms",
}

# The columns of the matrix, and where each project's own documentation is.
HOMES: dict[str, str | tuple[str, ...]] = {
    "this": "../",
    "Node": "https://worker.graphile.org/docs",
    "Procrastinate": "https://procrastinate.readthedocs.io/en/stable/",
    "PgQueuer": "https://janbjorge.github.io/pgqueuer/",
    "Celery": "https://docs.celeryq.dev/en/stable/",
    "RQ": "https://python-rq.org/",
    "Dramatiq": "https://dramatiq.io/",
    "Taskiq": "https://taskiq-python.github.io/",
    "Oban for Python": ("https://oban.pro/docs/py", "https://github.com/oban-bg/oban-py#"),
    "django-tasks-db": "https://github.com/RealOrangeOne/django-tasks-db",
}
NO_CLAIM = "–"
MEASURED = "Measured, one process"
LINK = re.compile(r"\[([^\]]+)\](?:\(([^)\s]+)\)|\[([\w-]+)\])")
DEFINITIONS = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", PAGE, re.MULTILINE))
LABELS = {"ours": "this", "node": "Node", "pgqueuer": "PgQueuer", "procrastinate": "Procrastinate"}


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


def matrix() -> list[list[str]]:
    """Return the lines of the matrix as cells, its head first."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    [divider] = [index for index, line in enumerate(lines) if line == "|---" * 11 + "|"]
    found = [split_cells(line) for line in [lines[divider - 1], *lines[divider + 1 :]]]
    return [row for row in found if len(row) == len(found[0])]


def links_of(cell: str) -> list[str]:
    """Return the addresses that a cell links to."""
    return [match[2] or DEFINITIONS[match[3]] for match in LINK.finditer(cell)]


def name_of(head: str) -> tuple[str, str]:
    """Return the project and the version that the head of a column names."""
    name, _, version = LINK.sub(r"\1", head).rpartition(" ")
    return name, version


def cells() -> Iterator[tuple[str, str, str]]:
    """Yield the feature, the project and the text of each cell."""
    head, *found = matrix()
    for feature, *row in found:
        for column, cell in zip(head[1:], row, strict=True):
            yield feature, name_of(column)[0], cell


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

    assert find_faster(batches) == set()
    assert find_faster(single) == {"pgqueuer"}
    assert max(waits, key=waits.__getitem__) == "ours"
    assert "PgQueuer added more jobs per second one by one." in PAGE
    assert (
        "Graphile Worker for Node and for Rust, PgQueuer and Procrastinate started a job "
        "slightly sooner" in PAGE
    )


def find_faster(rates: dict[str, float]) -> set[str]:
    return {name for name, rate in rates.items() if rate > rates["ours"]}


def test_the_number_of_faults_is_that_of_the_runs():
    told = re.search(r"reliability\.md\) with ([\d,]+) faults", PAGE)

    assert told is not None
    assert told[1] == f"{plots.faults(plots.read_runs(plots.RESULTS)).total():,}"


def test_each_column_names_its_project_and_version():
    head = matrix()[0]

    assert [name_of(cell)[0] for cell in head[1:]] == [*HOMES]
    assert all(re.fullmatch(r"\d+\.\d+", name_of(cell)[1]) for cell in head[1:])


def test_the_versions_are_those_that_were_measured():
    versions = dict(map(name_of, matrix()[0][1:]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked = (ROOT / "benchmarks/requirements.in").read_text(encoding="utf-8")

    assert project["version"].startswith(versions["this"] + ".")
    assert f"pgqueuer[asyncpg]=={versions['PgQueuer']}." in locked
    assert f"procrastinate=={versions['Procrastinate']}." in locked
    for of in read_results(RESULTS)["throughput"].values():
        assert versions["Node"] in of["contenders"]["node"]["label"]
        assert versions["PgQueuer"] in of["contenders"]["pgqueuer"]["label"]
        assert versions["Procrastinate"] in of["contenders"]["procrastinate"]["label"]


def test_each_claim_about_another_project_links_to_its_documentation(figure):
    claims = [each for each in cells() if each[1] != "this" and each[2] != NO_CLAIM]
    figure(f"claims about other projects with a link to their documentation: {len(claims)}")

    assert len(claims) > 100
    for feature, project, cell in claims:
        links = links_of(cell)
        # No word stands outside of a link.
        assert LINK.sub("", cell).strip(" ,") == "", cell
        home = "#benchmark" if feature == MEASURED else HOMES[project]
        assert links, f"{feature}, {project}: {cell}"
        assert all(link.startswith(home) for link in links), f"{feature}, {project}: {links}"


def test_each_feature_has_a_cell_of_this_project():
    own = [(feature, cell) for feature, project, cell in cells() if project == "this"]

    assert len(own) > 15
    for feature, cell in own:
        assert cell != NO_CLAIM
        targets = {link.partition("#")[0] for link in links_of(cell)} - {""}
        is_here = all(
            (ROOT / "docs/get-started" / target).is_file() for target in targets if target
        )
        assert is_here, f"{feature}: {cell}"


def test_each_definition_of_a_link_is_used():
    used = {match[3] for match in LINK.finditer(PAGE) if match[3]}

    assert used == DEFINITIONS.keys()


def test_a_figure_that_was_measured_on_fewer_jobs_names_their_number():
    result = newest_throughput()
    jobs = {LABELS[name]: count_jobs_run(result, name) for name in LABELS}
    rates = {
        LABELS[name]: result["contenders"][name]["jobs_per_second"]["median"] for name in LABELS
    }
    shown = {
        project: cell
        for feature, project, cell in cells()
        if feature == MEASURED and cell != NO_CLAIM
    }

    assert shown.keys() == jobs.keys()
    for project, cell in shown.items():
        assert f"[{rates[project]:,.0f} jobs/s" in cell
        assert (f"on {jobs[project]:,} jobs" in cell) == (jobs[project] < max(jobs.values())), cell


def newest_throughput() -> dict[str, Any]:
    of = read_results(RESULTS)["throughput"]
    newest: dict[str, Any] = of[max(of)]
    return newest


def test_both_sides_have_a_section():
    assert re.findall(r"^## Where (\w+)", PAGE, re.MULTILINE) == ["this", "others"]


def test_the_figures_are_those_of_the_newest_runs():
    assert report(PAGE, read_results(RESULTS)) == PAGE


def test_the_page_has_the_date_of_its_sources():
    assert re.search(r"\bRead on \d{4}-\d\d-\d\d\.", PAGE)
