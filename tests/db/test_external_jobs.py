"""Jobs of external tasks on a real queue: this app adds them, and its workers leave them."""

import json

import pytest

from graphile_worker import App, JobContext, JobSpecError
from graphile_worker.ops.diagnostics import DoctorOptions, FindingId, examine
from graphile_worker.ops.diagnostics.findings import QUEUE_FINDINGS
from graphile_worker.testing import Harness


async def test_workers_leave_jobs_of_external_tasks_to_other_programs(database, sql):
    app = App(database.dsn, schema=database.schema)

    @app.external_task("render_in_node", queue_name="images")
    def render(page: int) -> None: ...

    @app.task
    async def publish(ctx: JobContext, page: int) -> None:
        with pytest.raises(JobSpecError, match='render_in_node: "page" must be int'):
            await ctx.add_job("render_in_node", {"page": "x"})
        await ctx.add_job("render_in_node", {"page": page})

    async with app:
        await app.amigrate()
        job = await render.aenqueue(page=1)
        await publish.aenqueue(page=2)

        assert await app.worker().run_once() == 1

    assert (job.payload, job.queue_name) == ({"page": 1}, "images")
    query = "select task_identifier, queue_name, locked_by from :schema.jobs order by id"
    assert sql.run(query) == [("render_in_node", "images", None)] * 2


async def test_doctor_expects_no_python_worker_for_an_external_task(database, sql):
    details = json.dumps({"runtime": "python", "concurrency": 4, "tasks": ["resize"]})
    sql.run(
        "insert into :ext_schema.pools (id, lease, details) values ('pypool-1', '1 hour', $1)",
        details,
    )
    sql.run("select :schema.add_job('render_in_node', run_at => now() - interval '45 s')")

    for names, findings in ((set[str](), {FindingId.UNHANDLED_TASK}), ({"render_in_node"}, set())):
        options = DoctorOptions(external_tasks=frozenset(names))
        report = await examine(database.dsn, schema=database.schema, options=options)
        assert {each.id for each in report.findings} & QUEUE_FINDINGS == findings


def test_the_harness_matches_jobs_of_external_tasks_and_leaves_them(database):
    app = App(database.dsn, schema=database.schema)

    @app.external_task("render_in_node")
    def render(page: int) -> None: ...

    with Harness(app) as gw:
        render.enqueue(1)
        with gw.inline():
            render.enqueue(2)

        assert gw.drain() == []
        gw.assert_enqueued(render, page=1)
        gw.assert_enqueued("render_in_node", page=2)
        with pytest.raises(TypeError, match="render_in_node has no parameter 'pages'"):
            gw.assert_enqueued("render_in_node", pages=1)
