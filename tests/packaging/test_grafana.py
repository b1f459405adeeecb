"""The dashboards: their SQL runs as the read-only role, and their JSON has Grafana's types."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sql import Sql
from tools.grafana import postgres
from tools.grafana.dashboard import Panel
from tools.grafana.files import FOLDER

pytestmark = pytest.mark.single_version

STATEMENT = (
    Path(__file__).parents[2] / "src/graphile_worker/_sql/statements/count_runnable.sql"
).read_text(encoding="utf-8")

QUEUE = (
    "select :schema.add_job('ready', run_at => now() - interval '90 s')",
    "select :schema.add_job('ready', queue_name => 'a') from generate_series(1, 3)",
    "select :schema.add_job('later', run_at => now() + interval '1 h')",
    "select :schema.add_job('broken') from generate_series(1, 2)",
    """
    update :schema._private_jobs
    set attempts = max_attempts, last_error = E'boom\\nat line 1'
    where task_id = (select id from :schema._private_tasks where identifier = 'broken')
    """,
    "select :schema.add_job('running', queue_name => 'b')",
    """
    update :schema._private_jobs
    set locked_at = now() - interval '60 s', locked_by = 'pool-1', attempts = 1
    where task_id = (select id from :schema._private_tasks where identifier = 'running')
    """,
    """
    update :schema._private_job_queues
    set locked_at = now() - interval '60 s', locked_by = 'pool-1'
    where queue_name = 'b'
    """,
    "insert into :schema._private_known_crontabs values ('report', now(), now())",
    """
    insert into :ext_schema.pools (id, lease, details)
    values
      ('pypool-1', interval '30 s', '{"host": "web-1", "version": "1.0", "concurrency": 10}'),
      ('pypool-2', interval '30 s', '{"stopped": true}')
    """,
)


def list_panels() -> Iterator[Panel]:
    for row in postgres.DASHBOARD.rows:
        yield from row.panels


def test_the_queries_of_panels_run_as_the_read_only_role(owner, reader):
    for statement in QUEUE:
        owner.run(statement)

    [variable] = postgres.DASHBOARD.variables
    assert reader.run(variable.query) == [("graphile_worker",)]
    found = {panel.title: run(reader, panel) for panel in list_panels()}

    assert 90 <= found["Oldest ready job"][0][0] < 900
    assert found["Runnable jobs"] == [(reader.value(STATEMENT, None, 10_000, []),)] == [(3,)]
    assert found["Workers"] == [(1,)]
    assert found["Failed jobs"] == [(2,)]
    by_task = {row[0]: row[1:7] for row in found["Jobs by task"]}
    assert by_task == {
        "ready": (4, 0, 0, 0, 0, 0),
        "running": (0, 0, 1, 0, 0, 0),
        "later": (0, 0, 0, 0, 1, 0),
        "broken": (0, 0, 0, 0, 0, 2),
    }
    assert sum(row[1] for row in found["Jobs by due time"]) == 6
    [running] = found["Running jobs"]
    assert running[1] == "running"
    assert running[3:] == ("1/25", "b", "pool-1")
    assert found["Errors"][0][:4] == ("broken", "boom", 2, 0)
    assert [row[:2] for row in found["Named queues"]] == [("b", "pool-1")]
    assert [row[0] for row in found["Scheduled tasks"]] == ["report"]
    assert [row[:5] for row in found["Python workers"]] == [
        ("pypool-1", "alive", "web-1", "1.0", "10")
    ]
    assert [row[:3] for row in found["Lock holders"]] == [("pool-1", 1, 1)]
    for title in ("Size of the table of jobs", "Dead rows", "Oldest transaction"):
        assert found[title][0][0] >= 0
    assert 0 <= found["Notification queue"][0][0] < 1


def run(reader: Sql, panel: Panel) -> list[tuple[Any, ...]]:
    """Run the query of a panel, as Grafana does: with the value of its variable."""
    [query] = panel.queries
    return reader.run(query.text.replace("${schema}", reader.schema))


# Enumerations as the strings that JSON contains. Each data source defines its own queries and the
# texts of its annotations.
TYPES = """
import type { AnnotationQuery, Dashboard } from '@grafana/schema';
type Json<T> =
  T extends string ? `${T}`
  : T extends object ? { [K in keyof T]: K extends 'target' ? any : Json<T[K]> }
  : T;
type Annotation = Json<AnnotationQuery> & { titleFormat: string; textFormat: string };
type File = Omit<Json<Dashboard>, 'annotations'> & { annotations: { list: Annotation[] } };
"""


@pytest.mark.nightly
def test_the_dashboards_have_the_types_of_grafana(tmp_path):
    packages = ["@grafana/schema@13.2.3", "typescript@5.9.3"]
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *packages]
    if shutil.which("npm") is None or subprocess.run(install, cwd=tmp_path).returncode != 0:
        pytest.skip("the types of Grafana cannot be installed from npm")
    files = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.json"))]
    (tmp_path / "check.ts").write_text(
        TYPES + "".join(f"export const d{n}: File = {text};\n" for n, text in enumerate(files))
    )

    options = ["--strict", "--noEmit", "--skipLibCheck", "--module", "esnext"]
    options += ["--moduleResolution", "bundler", "--target", "es2022"]
    compiler = tmp_path / "node_modules/.bin/tsc"
    done = subprocess.run(
        [compiler, *options, "check.ts"], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.stdout == ""
    assert len(files) == 2
