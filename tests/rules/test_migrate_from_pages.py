"""The pages on migration: every option and name has a counterpart, every claim has a link."""

import inspect
import re

import pytest

import graphile_worker
from graphile_worker import Client, JobContext, Runner, run
from graphile_worker._cli.main import command
from graphile_worker._settings.definitions import SETTINGS
from graphile_worker.events import EVENTS_BY_NAME
from tests.support.pages import ROOT
from tests.support.tables import codes, rows, section
from tests.unit.test_events import REFERENCE

FOLDER = ROOT / "docs/migrate-from"
NODE = (FOLDER / "graphile-worker.md").read_text(encoding="utf-8")

# Words of a table that explain, and are not names of the package.
EXPLAINED = {"App", "datetime", "timedelta", "logging.Logger", "off", ".py", "$1", "%s"}

# As the documentation of Graphile Worker for Node 0.18 has them.
NODE_OPTIONS = re.findall(
    r"[\w.]+",
    """
    connectionString pgPool schema maxPoolSize pollInterval concurrentJobs concurrency
    preparedStatements noPreparedStatements taskDirectory taskList fileExtensions
    crontabFile crontab parsedCronItems useNodeTime gracefulShutdownAbortTimeout
    minResetLockedInterval maxResetLockedInterval localQueue.size localQueue.ttl
    localQueue.refetchDelay.durationMs localQueue.refetchDelay.threshold
    localQueue.refetchDelay.maxAbortThreshold completeJobBatchDelay failJobBatchDelay
    getQueueNameBatchDelay forbiddenFlags noHandleSignals logger events workerId
    """,
)


def part(heading: str) -> str:
    return section("migrate-from/graphile-worker.md", heading)


def names_in_snake_case(heading: str) -> set[str]:
    """Return the names in Python of the row whose names differ from Node's only by their case."""
    [row] = [row for row in rows(part(heading)) if "the same in snake case" in row[1]]
    return {
        re.sub(r"[A-Z]", lambda letter: "_" + letter[0].lower(), name) for name in codes(row[0])
    }


def test_each_option_of_node_has_a_row():
    told = {name for row in rows(part("Options")) for name in codes(row[0])}

    assert set(NODE_OPTIONS) <= told


def test_the_counterpart_of_an_option_is_a_setting_or_an_argument():
    arguments = {f"{name}=" for name in inspect.signature(run).parameters}
    known = SETTINGS.keys() | arguments | EXPLAINED | {"run"}

    told = {name for row in rows(part("Options")) for name in codes(row[1])}

    assert told - known == set()
    assert names_in_snake_case("Options") - SETTINGS.keys() == set()


def test_every_function_that_is_named_exists():
    names = {
        *dir(graphile_worker),
        *(name for kind in (Client, Runner) for name in dir(kind)),
        *inspect.signature(run).parameters,
        "hooks",
        "job_key_mode",
    }

    told = {name for row in rows(part("Functions")) for name in codes(row[1])}
    words = {re.split(r"[(=]", name.removeprefix("await "))[0].split(".")[-1] for name in told}

    assert words - names - {"Client", "Logger", "tasks"} == set()
    assert names_in_snake_case("Functions") - names == set()


def test_each_helper_of_node_has_a_counterpart_in_the_context():
    told = {
        name for row in rows(part("Helpers")) for name in re.findall(r"ctx\.(\w+)", " ".join(row))
    }

    assert told <= {name for name in dir(JobContext) if not name.startswith("_")}


def test_all_flags_of_node_exist():
    told = set(re.findall(r"`(--?[a-zA-Z-]+)`", part("Command and environment")))
    ours = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}

    assert len(told) > 10
    assert told <= ours


def test_all_events_of_node_have_the_same_names():
    assert f"All {len(REFERENCE)} events" in NODE
    assert EVENTS_BY_NAME.keys() >= REFERENCE
    assert len(EVENTS_BY_NAME) - len(REFERENCE) == 17
    assert "Seventeen more are only in Python" in NODE


@pytest.mark.parametrize(
    ("page", "home"),
    [
        ("celery.md", "https://docs.celeryq.dev/en/stable/"),
        ("procrastinate.md", "https://procrastinate.readthedocs.io/en/stable/"),
    ],
)
def test_claims_about_other_projects_have_links_and_a_date(page, home):
    text = (FOLDER / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((https://[^)]+)\)", text)

    assert len({link for link in links if link.startswith(home)}) > 8
    assert re.search(r"read on \d{4}-\d\d-\d\d", text)
