"""Prometheus with the files of deploy/: it scrapes workers and an exporter, and alerts."""

import shutil
from contextlib import suppress
from typing import Any

import pytest
import yaml

from graphile_worker import ConcurrencyLimit
from graphile_worker._sql.queries.limits import create_limit_rows, register_limits
from tests.support.cluster import free_port
from tests.support.pools import open_session
from tests.support.processes import Programs
from tests.support.prometheus import (
    FILES,
    Prometheus,
    promtool,
    read_config,
    read_rules,
    run_prometheus,
)
from tools.grafana import workers

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(600)]

TASK = """
    async def task(payload, ctx): ...
"""
CRONTAB = "* * * * * work ?id=every_minute\n"

# Fires if the machine that runs the tests is too busy.
OF_THE_MACHINE = {"GraphileWorkerLoopBlocked"}

# Panels without a value in a queue whose scheduler waits for its first minute, and without errors.
EMPTY_PANELS = {"Last run by item", "Scheduled jobs", "Time to drain"}


def test_promtool_accepts_the_rules_and_the_configuration(tmp_path):
    for path in FILES.iterdir():
        shutil.copy(path, tmp_path)
    config = read_config(workers=["worker-1:8080"], queue=["exporter:9465"])
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")

    # Checks the file of rules that it names, too.
    checked = promtool("check", "config", tmp_path / "prometheus.yml")
    tested = promtool("test", "rules", tmp_path / "rules.test.yml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.nightly
def test_alerts_fire_and_clear(database, programs: Programs, sql, tmp_path):
    with open_session(database) as connection:
        connection.run(register_limits([ConcurrencyLimit(20, name="resize")]))
        connection.run(create_limit_rows(["resize"]))
    programs.write("tasks/work.py", TASK)
    programs.write("crontab", CRONTAB)
    ports = [free_port(), free_port()]
    fleet = [
        programs.command("--health-port", str(ports[0]), "--jobs", "5"),
        # A worker that does not use notifications must not look like one that lost them.
        programs.command("--health-port", str(ports[1]), "--jobs", "5", "--no-listen"),
    ]
    exporter_port = free_port()
    programs.command("exporter", "--port", str(exporter_port))
    sql.run("select :schema.add_job('work') from generate_series(1, 40)")
    config = read_config(
        workers=[f"127.0.0.1:{port}" for port in ports], queue=[f"127.0.0.1:{exporter_port}"]
    )
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}

    with run_prometheus(tmp_path / "prometheus", config, shorten(read_rules())) as prometheus:
        prometheus.wait_for(lambda: prometheus.value("sum(up)") == 3, "all targets are up")
        done = 'sum(graphile_worker_jobs_finished_total{outcome="success"})'
        # More if a minute begins meanwhile, which adds a job.
        prometheus.wait_for(
            lambda: (prometheus.value(done) or 0) >= 40, "both workers count their jobs"
        )
        # No worker has this task, and its job is overdue.
        sql.run("select :schema.add_job('unknown', run_at => now() - interval '10 minutes')")
        wait_for_alerts(prometheus, {"GraphileWorkerJobsWaiting"})
        alert = prometheus.list_firing()["GraphileWorkerJobsWaiting"]
        check_panels(prometheus)
        assert prometheus.value("count(graphile_worker_listen_connected)") == 1
        sql.run("delete from :schema._private_jobs")
        wait_for_alerts(prometheus, set())
        fleet[0].kill()
        wait_for_alerts(prometheus, {"GraphileWorkerDown"})

    assert alert["labels"]["task"] == "unknown"
    assert alert["annotations"]["summary"].startswith("Jobs of task unknown wait for 10m")
    assert "graphile-worker jobs list --where 'task:unknown" in alert["annotations"]["description"]


def shorten(rules: dict[str, Any]) -> dict[str, Any]:
    """Let alerts fire after 2 s instead of minutes."""
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "2s"
    return rules


def wait_for_alerts(prometheus: Prometheus, names: set[str]) -> None:
    prometheus.wait_for(
        lambda: {*prometheus.list_firing()} - OF_THE_MACHINE == names,
        f"only these alerts fire: {names}",
    )


def check_panels(prometheus: Prometheus) -> None:
    """Wait until each panel of the dashboard has a value. The sample of all jobs is 5 s old."""
    panels = [panel for row in workers.DASHBOARD.rows for panel in row.panels]
    for expression in [query.text for panel in panels for query in panel.queries] + [
        annotation.query for annotation in workers.DASHBOARD.annotations
    ]:
        # An expression that Prometheus cannot parse is an error.
        prometheus.query(fill(expression))
    empty = [panel for panel in panels if panel.title not in EMPTY_PANELS]

    def is_filled() -> bool:
        empty[:] = [
            panel
            for panel in empty
            if not any(prometheus.query(fill(query.text)) for query in panel.queries)
        ]
        return not empty

    # If some panels stay empty, the last assertion names them.
    with suppress(AssertionError):
        prometheus.wait_for(is_filled, "all panels have a value")
    assert [panel.title for panel in empty] == []


def fill(expression: str) -> str:
    """Set the variables as Grafana does."""
    for name, value in {"$__rate_interval": "10s", "$schema": ".*", "$task": ".*"}.items():
        expression = expression.replace(name, value)
    return expression
