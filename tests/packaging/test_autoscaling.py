"""What KEDA and the HPA read: the query, the endpoint and the metric give the same number."""

import json
import math
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from graphile_worker._cli.metrics_routes import SCALE_PATH, parse_scale_query
from tests.support.cluster import free_port
from tests.support.health import status
from tests.support.pages import ROOT
from tests.support.processes import Programs
from tests.support.promql import list_mistakes
from tests.support.roles import as_role
from tests.support.sql import Sql

pytestmark = pytest.mark.single_version

FOLDER = ROOT / "deploy" / "kubernetes"

# Of scale-tasks.yaml.
TASKS = ["render_pdf", "send_report"]

SCALERS = ("scale", "scale-tasks")

# Of both queries.
LIMIT = 200


def read_objects(name: str) -> dict[str, dict[str, Any]]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def read_trigger(name: str) -> dict[str, Any]:
    [trigger] = read_objects(name)["ScaledObject"]["spec"]["triggers"]
    metadata: dict[str, Any] = trigger["metadata"]
    return metadata


def get_exporter() -> dict[str, Any]:
    deployment = read_objects("exporter.yaml")["Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


# The manifests


def test_autoscalers_name_the_deployment_and_the_number_of_jobs_of_a_pod():
    worker = read_objects("worker.yaml")["Deployment"]
    arguments = worker["spec"]["template"]["spec"]["containers"][0]["args"]
    jobs = arguments[arguments.index("--jobs") + 1]
    [metric] = read_objects("hpa.yaml")["HorizontalPodAutoscaler"]["spec"]["metrics"]

    for name, kind in (
        ("scale.yaml", "ScaledObject"),
        ("scale-metrics-api.yaml", "ScaledObject"),
        ("hpa.yaml", "HorizontalPodAutoscaler"),
    ):
        target = read_objects(name)[kind]["spec"]["scaleTargetRef"]
        assert target["name"] == worker["metadata"]["name"]
    assert read_trigger("scale.yaml")["targetQueryValue"] == jobs
    assert read_trigger("scale-metrics-api.yaml")["targetValue"] == jobs
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": jobs}


def test_queries_count_no_more_jobs_than_all_pods_can_run():
    for name in SCALERS:
        spec = read_objects(f"{name}.yaml")["ScaledObject"]["spec"]
        trigger = read_trigger(f"{name}.yaml")

        assert int(trigger["targetQueryValue"]) * spec["maxReplicaCount"] == LIMIT
        assert trigger["query"].count(f"limit {LIMIT}") == 3


def test_the_hpa_uses_the_metric_that_the_adapter_serves():
    objects = read_objects("hpa.yaml")
    [rule] = yaml.safe_load(objects["ConfigMap"]["data"]["config.yaml"])["externalRules"]
    [metric] = objects["HorizontalPodAutoscaler"]["spec"]["metrics"]

    assert rule["seriesQuery"] == metric["external"]["metric"]["name"]
    assert list_mistakes(rule["seriesQuery"]) == []


def test_all_parts_use_the_address_of_the_exporter():
    objects = read_objects("exporter.yaml")
    deployment, service = objects["Deployment"], objects["Service"]
    container = get_exporter()
    [port] = service["spec"]["ports"]
    address = f"{service['metadata']['name']}:{port['port']}"
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    [targets] = prometheus["scrape_configs"][1]["static_configs"]

    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert container["ports"] == [{"name": port["targetPort"], "containerPort": port["port"]}]
    assert str(port["port"]) in container["args"]
    [target] = targets["targets"]
    assert target.replace(".default.svc", "") == address
    url = urlsplit(read_trigger("scale-metrics-api.yaml")["url"])
    assert url.netloc.replace(".default.svc", "") == address


def test_the_endpoint_counts_as_far_as_the_query():
    trigger = read_trigger("scale-metrics-api.yaml")
    url = urlsplit(trigger["url"])
    query = parse_scale_query(parse_qs(url.query))

    assert url.path == SCALE_PATH
    assert query.limit == LIMIT
    assert str(query.jobs) == trigger["targetValue"]
    assert (
        query.max_pods
        == read_objects("scale-metrics-api.yaml")["ScaledObject"]["spec"]["maxReplicaCount"]
    )


# The numbers


class Prepared(NamedTuple):
    """A queue: the statements that fill it, and its numbers for all tasks and for `TASKS`."""

    title: str
    statements: tuple[str, ...]
    all_tasks: int
    some_tasks: int


def add(
    task: str = "render_pdf",
    queue: str | None = None,
    *,
    count: int = 1,
    after: str = "0",
    queues: bool = False,
) -> str:
    """Return a statement that adds jobs. With `queues`, each has its own queue."""
    name = "null" if queue is None else f"'{queue}'"
    return (
        f"select :schema.add_job('{task}', queue_name => {f'{name} || n' if queues else name}, "
        f"run_at => now() + interval '{after}') from generate_series(1, {count}) as n"
    )


LOCK = "update :schema._private_jobs set locked_by = 'x', locked_at = now()"
LOCK_QUEUE = "update :schema._private_job_queues set locked_by = 'x', locked_at = now()"
FIRST = " where id = (select min(id) from :schema._private_jobs)"
FAIL = "update :schema._private_jobs set attempts = max_attempts"
RETRY = "update :schema._private_jobs set attempts = 1, run_at = now() + interval"

PAUSE = (
    "insert into :ext_schema.pauses (kind, name, paused_by, until) "
    "values ('task', 'render_pdf', 'ada', now() + interval"
)

QUEUES = [
    Prepared("no jobs", (), 0, 0),
    Prepared("ready jobs", (add(count=3), add("other", count=2)), 5, 3),
    Prepared("jobs of a named queue count once", (add(queue="a", count=5),), 1, 1),
    Prepared("named queues count once each", (add(queue="a"), add(queue="b", count=4)), 2, 2),
    Prepared("due within 30 s", (add(after="10 s"), add("other", after="20 s")), 2, 1),
    Prepared("due in an hour", (add(after="1 h"), add(queue="a", after="1 h")), 0, 0),
    Prepared("running jobs", (add(count=2), add("other"), LOCK), 3, 2),
    Prepared("one of two runs", (add(count=2), LOCK + FIRST), 2, 2),
    Prepared(
        "a named queue with a running job and waiting jobs",
        (add(queue="a", count=4), LOCK + FIRST, LOCK_QUEUE),
        1,
        1,
    ),
    Prepared("a paused queue", (add(queue="a", count=4), LOCK_QUEUE), 0, 0),
    Prepared(
        "a paused task, one job of which still runs",
        (add(count=3), LOCK + FIRST, add(queue="a"), add("other"), f"{PAUSE} '1 h')"),
        2,
        1,
    ),
    Prepared(
        "a queue of a paused task and another one",
        (add(queue="a"), add("send_report", "a"), f"{PAUSE} '1 h')"),
        1,
        1,
    ),
    Prepared("a pause of a task that has ended", (add(count=3), f"{PAUSE} '-1 s')"), 3, 3),
    Prepared("permanently failed", (add(count=3), FAIL), 0, 0),
    Prepared("the last attempt runs", (add(), FAIL, LOCK), 1, 1),
    Prepared("a retry is due within 30 s", (add(), f"{RETRY} '5 s'"), 1, 1),
    Prepared("a retry is due later", (add(), f"{RETRY} '5 min'"), 0, 0),
    Prepared("only other tasks", (add("other", count=4), add("other", "a")), 5, 0),
    Prepared("a queue of two tasks", (add("other", "a"), add("send_report", "a")), 1, 1),
    Prepared(
        "a queue that a job of another task holds",
        (add("other", "a"), LOCK, LOCK_QUEUE, add("send_report", "a")),
        1,
        0,
    ),
    Prepared(
        "a job whose queue was deleted",
        (add(queue="a"), "delete from :schema._private_job_queues"),
        0,
        0,
    ),
    Prepared("two tasks of the set", (add(), add("send_report", count=2)), 3, 3),
    Prepared(
        "more jobs, queues and locks than the limit",
        (
            add(count=300),
            LOCK,
            add(count=300),
            add(queue="q", queues=True, count=300),
            add("other", count=300),
        ),
        3 * LIMIT,
        3 * LIMIT,
    ),
]


def test_queries_and_endpoint_agree_on_23_queues(owner, reader, secured_database, tmp_path):
    assert len(QUEUES) == 23
    location = read_trigger("scale-metrics-api.yaml")["valueLocation"]
    port = free_port()
    with Programs(tmp_path, DATABASE_URL=as_role(secured_database, "queue_reader")) as programs:
        container = get_exporter()
        exporter = programs.command(
            *(str(port) if each == "9465" else each for each in container["args"])
        )
        exporter.wait_for_line("exporter listening")
        for probe in ("livenessProbe", "readinessProbe"):
            assert status(port, container[probe]["httpGet"]["path"]) == 200
        for number, queue in enumerate(QUEUES):
            prepare(owner, queue)
            # Answers are kept for 5 s, separately for each limit.
            is_last = number == len(QUEUES) - 1
            parameters = f"jobs=10&max={20 if is_last else 500 + number}"

            by_query = [reader.value(read_trigger(f"{name}.yaml")["query"]) for name in SCALERS]
            by_endpoint = [
                scale(port, parameters),
                scale(port, f"{parameters}&tasks={','.join(TASKS)}"),
            ]

            assert by_query == [queue.all_tasks, queue.some_tasks], queue.title
            assert [each[location] for each in by_endpoint] == by_query, queue.title
            # What KEDA and the HPA make of that number.
            pods = [
                min(math.ceil(each / 10), 20) if is_last else math.ceil(each / 10)
                for each in by_query
            ]
            assert [each["pods"] for each in by_endpoint] == pods, queue.title


def prepare(owner: Sql, queue: Prepared) -> None:
    owner.run("truncate :schema._private_jobs, :schema._private_job_queues, :ext_schema.pauses")
    for statement in queue.statements:
        owner.run(statement)


def scale(port: int, parameters: str) -> dict[str, int]:
    url = f"http://127.0.0.1:{port}{SCALE_PATH}?{parameters}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: dict[str, int] = json.load(answer)
        return found
