"""Alert rules and dashboards name metrics, labels, commands and pages that exist."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import click
import pytest
import yaml

from graphile_worker._cli.main import command as root_command
from graphile_worker._metrics.definitions import METRICS_BY_NAME
from graphile_worker.ops.filters import parse_filter
from tests.support.pages import ROOT
from tests.support.promql import list_metrics, list_mistakes
from tools.grafana.files import DASHBOARDS, FOLDER, render_dashboard
from tools.pages import DOCS, find_headings

pytestmark = pytest.mark.single_version

PROMETHEUS = ROOT / "deploy" / "prometheus"

# Metrics of interest to a person who looks at one worker, not to a dashboard.
NOT_SHOWN = {"graphile_worker_snapshot_errors_total", "graphile_worker_snapshot_shared"}


@cache
def read_yaml(name: str) -> Any:
    return yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))


def list_rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml("rules.yml")["groups"] for rule in group["rules"]]


def list_expressions() -> Iterator[str]:
    """Yield the expressions of rules and dashboards."""
    yield from (rule["expr"] for rule in list_rules())
    dashboard = DASHBOARDS["workers.json"].build()
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["query"]["query"] for variable in dashboard["templating"]["list"][1:])
    yield from (each["target"]["expr"] for each in dashboard["annotations"]["list"])


def test_rules_and_dashboards_name_only_metrics_and_labels_that_exist():
    for expression in list_expressions():
        assert list_mistakes(expression) == [], expression


def test_wrong_names_in_expressions_are_found():
    assert list_mistakes("sum by (tusk) (rate(graphile_worker_jobs_started_total[5m]))") == [
        "label tusk"
    ]
    assert list_mistakes("graphile_worker_job_duration_seconds") != []
    assert list_mistakes("graphile_worker_jobs_running_total") != []
    assert list_mistakes('graphile_worker_queue_jobs{state="dead"}') != []
    assert list_mistakes('graphile_worker_queue_jobs{outcome="failed"}') != []


def test_the_dashboard_shows_every_metric():
    shown = {metric.name for each in list_expressions() for metric in list_metrics(each)}

    assert METRICS_BY_NAME.keys() - shown == NOT_SHOWN


# Rules


def test_every_alert_names_a_severity_and_what_to_do():
    for rule in list_rules():
        assert re.fullmatch("GraphileWorker[A-Z][A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_the_commands_and_filters_of_alerts_exist():
    texts = " ".join(rule["annotations"]["description"] for rule in list_rules())
    commands = re.findall(r"`graphile-worker ([^`]+)`", texts)

    for command in commands:
        words = re.match(r"[a-z ]*[a-z]", command)
        assert words is not None
        assert is_command(words[0].split()), command
    for text in re.findall(r"--where '?([^'`]+)", texts):
        parse_filter(re.sub(r"\{\{.*?\}\}", "send_email", text))
    assert {*re.findall(r"`(--[a-z-]+)`", texts)} <= {"--no-listen"}


def is_command(words: list[str]) -> bool:
    command: click.Command | None = root_command
    for word in words:
        if not isinstance(command, click.Group):
            return False
        command = command.get_command(click.Context(command), word)
    return command is not None


def test_the_pages_and_findings_of_alerts_exist():
    titles = {
        find_headings(page.read_text(encoding="utf-8"))[0].text for page in DOCS.rglob("*.md")
    }
    findings = (DOCS / "operations" / "troubleshooting.md").read_text(encoding="utf-8")

    for rule in list_rules():
        for title, finding in re.findall(
            r"\(page ([^,)]+)(?:, `([a-z-]+)`)?\)", rule["annotations"]["description"]
        ):
            assert title.replace("Troubleshooting", "Troubleshooting (doctor)") in titles
            assert not finding or f"### `{finding}`" in findings


def test_every_alert_has_a_firing_and_a_silent_case():
    firing: set[str] = set()
    silent: set[str] = set()
    for case in read_yaml("rules.test.yml")["tests"]:
        for check in case["promql_expr_test"]:
            [names] = re.findall(r'alertname=~?"([^"]+)"', check["expr"])
            alerts = {rule["alert"] for rule in list_rules() if re.fullmatch(names, rule["alert"])}
            (firing if check.get("exp_samples") else silent).update(alerts)

    assert firing == silent == {rule["alert"] for rule in list_rules()}


# Dashboards


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboards_are_current(name):
    expected = render_dashboard(DASHBOARDS[name])

    assert (FOLDER / name).read_text(encoding="utf-8") == expected, (
        "generate it again: python -m tools.grafana"
    )


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_help_and_do_not_overlap(name):
    dashboard = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    cells = [
        (x, y)
        for position in (panel["gridPos"] for panel in panels)
        for x in range(position["x"], position["x"] + position["w"])
        for y in range(position["y"], position["y"] + position["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        assert panel["type"] == "row" or (panel["title"] and panel["description"].endswith("."))
