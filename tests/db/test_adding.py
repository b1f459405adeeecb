"""Jobs that people add: their payload as written, their check, and their entry in the audit."""

from typing import Any

import pytest

from graphile_worker import App, JobSpec
from graphile_worker.errors import JobSpecError
from graphile_worker.ops.adding import (
    describe_parameters,
    find_payload_problems,
    list_unknown_keys,
    plan_add_for_person,
)

app = App()


@app.task
def resize(width: int, *, tags: list[str] | None = None, **more: Any) -> None:
    """Do nothing."""


@app.task
def strict(width: int) -> None:
    """Do nothing."""


@app.batch_task
def batch(items: list[int]) -> None:
    """Do nothing."""


def test_a_payload_is_stored_as_it_was_written_and_the_audit_names_the_person(table, sql):
    plan = plan_add_for_person(
        JobSpec("resize", queue_name="q"), '{"n":  1.10}', table.schemas, actor="ada"
    )
    added = table.run_plan(plan)

    assert sql.value("select payload::text from :schema._private_jobs") == '{"n":  1.10}'
    assert added.is_new
    entry = sql.run("select actor, action, filter, job_ids, note from :ext_schema.audit")
    assert entry == [("ada", "jobs add", "task:resize", [added.id], "queue=q")]


def test_a_key_changes_an_existing_job(table):
    spec = JobSpec("resize", job_key="k")
    first, second = (
        table.run_plan(plan_add_for_person(spec, None, table.schemas)) for _ in range(2)
    )

    assert (first.id, first.is_new, second.is_new) == (second.id, True, False)


def test_what_the_database_rejects_is_a_job_spec_error(table):
    with pytest.raises(JobSpecError):
        table.run_plan(plan_add_for_person(JobSpec("a"), "[" * 100_000, table.schemas))


def test_payloads_are_checked_as_a_worker_reads_them():
    for task, text, paths in [
        (resize, '{"width": 1}', []),
        (resize, '{"width": "1"}', ["width"]),
        (resize, '{"width": 1, "tags": [1]}', ["tags[0]"]),
        (resize, "{}", ["width"]),
        (resize, None, ["width"]),
        (resize, "[]", [""]),
        (resize, "{", [""]),
        (resize, "NaN", [""]),
        (resize, '{"width": "\\u0000"}', [""]),
        (None, "[1]", []),
        (None, "[" * 100_000, [""]),
        (batch, "[1, 2]", []),
        (batch, '["a"]', ["[0]"]),
    ]:
        assert [each.path for each in find_payload_problems(text, task)] == paths, text


def test_unknown_keys_are_listed_if_the_task_has_no_place_for_them():
    text = '{"width": 1, "widthh": 2, "_cron": 3}'

    assert list_unknown_keys(text, strict) == ["widthh"]
    assert list_unknown_keys(text, resize) == []
    assert list_unknown_keys("{", strict) == []


def test_parameters_have_their_annotations_and_defaults():
    described = describe_parameters(resize)

    assert described is not None
    assert [(each.name, each.default, each.is_required) for each in described] == [
        ("width", None, True),
        ("tags", "null", False),
        ("**more", None, False),
    ]
    assert describe_parameters(batch) is None
