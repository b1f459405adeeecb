"""Calls of the public API that type checkers accept as they stand."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from graphile_worker import (
    CleanupTask,
    Client,
    GraphileWorkerError,
    Job,
    JobKeyMode,
    JobSpec,
    JobSpecError,
    SchemaTooNew,
    WorkerOptions,
    add_job_adhoc,
    make_worker_utils,
    migration_sql,
    quick_add_job,
    run_migrations,
    sync,
)


async def add(client: Client, connection: object) -> Job:
    await client.add_job("resize")
    await client.add_job("resize", {"path": "a.png", "sizes": [1, 2]})
    await client.add_job("resize", [1, "two", None], conn=connection)
    return await client.add_job(
        "resize",
        {"path": "a.png"},
        queue_name="images",
        run_at=datetime.now(UTC),
        max_attempts=3,
        priority=-5,
        job_key="a.png",
        job_key_mode="preserve_run_at",
        flags={"slow"},
    )


async def add_many(client: Client) -> list[int]:
    specs: Sequence[JobSpec] = [
        JobSpec("resize", {"path": "a.png"}),
        JobSpec("resize", run_at=timedelta(minutes=5), job_key="b"),
        JobSpec("mail", job_key="c", job_key_mode=JobKeyMode.REPLACE, flags=["a"]),
    ]
    jobs = await client.add_jobs(specs)
    jobs += await client.add_jobs(JobSpec("mail", number) for number in range(3))
    return [job.id for job in jobs]


async def look_after(client: Client) -> None:
    found: Job | None = await client.get_job(1)
    keyed: Job | None = await client.get_job_by_key("a")
    removed: Job | None = await client.remove_job("a")
    done: list[Job] = await client.complete_jobs([1, 2])
    failed: list[Job] = await client.permanently_fail_jobs({3}, "gone")
    later: list[Job] = await client.reschedule_jobs((4,), run_at=timedelta(hours=1), attempts=0)
    await client.force_unlock_workers(["pool-1"])
    await client.cleanup([CleanupTask.GC_JOB_QUEUES, "GC_TASK_IDENTIFIERS"])
    level: int = await client.migrate() + await client.check_schema()
    print_all(found, keyed, removed, done, failed, later, level)


def read(job: Job) -> None:
    number: int = job.id
    names: list[str | None] = [job.task_identifier, job.queue_name, job.key, job.last_error]
    times: list[datetime] = [job.run_at, job.created_at, job.updated_at]
    locked: datetime | None = job.locked_at
    flags: frozenset[str] = job.flags
    counts: list[int] = [job.priority, job.attempts, job.max_attempts, job.revision]
    print_all(number, names, times, locked, flags, counts, job.payload, job.payload_text)


async def with_and_without_a_block() -> None:
    async with Client("postgres:///shop", schema="jobs", max_payload_bytes=10_000) as client:
        await client.add_job("resize")
    utils: Client = await make_worker_utils("postgres:///shop", use_local_time=True)
    await utils.release()
    level: int = await run_migrations(options=WorkerOptions(schema="jobs"))
    job: Job = await add_job_adhoc("postgres:///shop", "resize", {"a": 1}, priority=1)
    same: Job = await quick_add_job(None, "resize")
    print_all(level, job, same, migration_sql("jobs", from_level=18))


def blocking(connection: object) -> None:
    with sync.Client() as client:
        job: Job = client.add_job("resize", {"a": 1}, job_key="a", conn=connection)
        jobs: list[Job] = client.add_jobs([JobSpec("resize")])
        found: Job | None = client.get_job(job.id)
        level: int = client.migrate()
        print_all(job, jobs, found, level)
    utils: sync.Client = sync.make_worker_utils()
    utils.close()
    print_all(sync.run_migrations(), sync.add_job_adhoc(None, "resize").id)


def errors(error: GraphileWorkerError) -> str:
    match error:
        case JobSpecError():
            return f"{error.argument} {error.code} {error.reason}"
        case SchemaTooNew():
            return f"{error.schema} {error.level} {error.exit_code}"
        case _:
            return str(error)


def print_all(*values: object) -> None:
    """Use them."""
