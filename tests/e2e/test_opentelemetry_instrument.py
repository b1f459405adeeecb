"""The command `opentelemetry-instrument` exports the telemetry of a worker without any code."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import INSTALLED, Programs
from tests.support.sql import Sql

# The oldest releases that are allowed are tested without it.
pytest.importorskip("opentelemetry.instrumentation")

COMMAND = str(Path(sys.executable).parent / "opentelemetry-instrument")

# What the package opentelemetry-distro adds: the SDK reads its environment variables.
CONFIGURATOR = """\
[opentelemetry_configurator]
configurator = opentelemetry.sdk._configuration:_OTelSDKConfigurator
"""

APP = """\
from graphile_worker import App

app = App()

@app.task
async def greet(name: str) -> None:
    if name == "Bob":
        raise ValueError(name)
"""


def test_opentelemetry_instrument_exports_spans_metrics_and_exceptions_of_a_worker(
    programs: Programs, sql: Sql
) -> None:
    programs.write("configurator-1.dist-info/METADATA", "Name: configurator\nVersion: 1\n")
    programs.write("configurator-1.dist-info/entry_points.txt", CONFIGURATOR)
    programs.write("shop.py", APP)
    sql.run("select :schema.add_job('greet', json_build_object('name', 'Ada'))")
    sql.run("select :schema.add_job('greet', json_build_object('name', 'Bob'))")

    worker = programs.without_fork.start(
        [COMMAND, INSTALLED, "--app", "shop:app", "--once"],
        {
            "OTEL_TRACES_EXPORTER": "console",
            "OTEL_METRICS_EXPORTER": "console",
            "OTEL_LOGS_EXPORTER": "console",
            "OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN": "logs",
        },
    )
    assert worker.end() == 0, worker.err

    exported = list(read_objects(worker.out))
    spans = [each for each in exported if "kind" in each]
    [log] = [each for each in exported if "severity_number" in each]
    [metrics] = [each for each in exported if "resource_metrics" in each]
    assert [span["name"] for span in spans] == ["process greet", "process greet"]
    assert log["event_name"] == "messaging.process.exception"
    assert log["span_id"] == spans[1]["context"]["span_id"]
    assert spans[1]["events"] == []
    assert read_points(metrics, "messaging.client.consumed.messages") == {"greet": 2}
    assert read_points(metrics, "graphile_worker.jobs.finished") == {
        "greet success": 1,
        "greet retry": 1,
    }


def read_points(metrics: dict[str, Any], name: str) -> dict[str, int]:
    """Return the values that are not 0, by those attributes that differ."""
    [resource] = metrics["resource_metrics"]
    [scope] = resource["scope_metrics"]
    [found] = [each for each in scope["metrics"] if each["name"] == name]
    fixed = {"graphile_worker", "get_jobs"}
    values = {
        " ".join(value for value in point["attributes"].values() if value not in fixed): (
            point["value"]
        )
        for point in found["data"]["data_points"]
    }
    return {attributes: value for attributes, value in values.items() if value}


def read_objects(text: str) -> Iterator[dict[str, Any]]:
    """Parse the JSON objects that exporters printed one after another."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        found, end = decoder.raw_decode(text)
        yield found
        text = text[end:]
