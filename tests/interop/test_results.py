"""A job that ends under a worker for Node leaves no outcome: its status is unknown."""

import asyncio
from datetime import timedelta

import pytest

from graphile_worker import App, JobFailedError, JobStatusState, ResultUnknownError, Retention
from tests.support.node import node_worker

pytestmark = pytest.mark.single_version

SOON = timedelta(seconds=60)
WORDS = (
    "is not in the queue and left no outcome: it ended under a worker that keeps nothing (for "
    "example Node or Rust, or a task without retention), was removed, or is older than the time "
    "that outcomes are kept"
)


@pytest.mark.timeout(120)
async def test_a_job_that_node_ran_is_unknown_and_one_that_failed_there_raises_its_error(
    database, tmp_path
):
    app = App[None](database.dsn, schema=database.schema)

    @app.task(retention=Retention(results=True))
    def works() -> int:
        return 1

    @app.task(retention=Retention(results=True), max_attempts=1)
    def fails() -> int:
        return 1

    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/works.js").write_text("module.exports = async () => 1;\n")
    source = 'module.exports = async () => { throw new Error("boom"); };\n'
    (tmp_path / "tasks/fails.js").write_text(source)
    done, failed = await works.aenqueue(), await fails.aenqueue()

    await asyncio.to_thread(
        node_worker, "0.18", database.url, "--once", schema=database.schema, cwd=tmp_path
    )

    with pytest.raises(ResultUnknownError) as unknown:
        await done.aresult(SOON)
    status = await app.astatus(done.id)
    assert str(unknown.value) == str(status) == f"job {done.id} {WORDS}"
    assert (status.state, status.detail) == (JobStatusState.UNKNOWN, WORDS)
    with pytest.raises(JobFailedError, match="boom"):
        await failed.aresult(SOON)
    assert (await app.astatus(failed.id)).state is JobStatusState.FAILED
    await app.close()
