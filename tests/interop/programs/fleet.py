"""A Python worker: python fleet.py <install|add|run|once> <options as JSON>.

Its options and tasks are those of fleet.js and of ../rust/worker.rs, which run the same tests in
their languages. `run` prints "ready" and stops at SIGTERM, `once` ends when no job is ready.
"""

import asyncio
import json
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from graphile_worker import App, JobContext, RecoveryOptions, WorkerOptions, run, sync

options = json.loads(sys.argv[2])
url, schema = options["url"], options["schema"]
language = options.get("language", "python")


async def record(ctx: JobContext, payload: Any, /) -> None:
    wishes = payload if isinstance(payload, dict) else {}
    attempt = ctx.job.attempts
    if wishes.get("fail_first") and attempt == 1:
        raise ValueError("not the first time")
    if language in wishes.get("fail_in", ()):
        raise ValueError(f"not in {language}")
    if language in wishes.get("hang_in", ()):
        # Until the test kills this process.
        await asyncio.sleep(24 * 3600)
    await asyncio.sleep(wishes.get("sleep_ms", 0) / 1000)
    await ctx.query(
        "insert into ran (job, attempt, language, payload) values (%s, %s, %s, %s)",
        (ctx.job.id, attempt, language, json.dumps(ctx.job.payload)),
    )


async def numbers(ctx: JobContext, items: list[int]) -> list[BaseException | None]:
    await record(ctx, items)
    rejects_odd = options.get("reject_odd", False)
    return [ValueError(f"{each} is odd") if rejects_odd and each % 2 else None for each in items]


def build_app() -> App[None]:
    app = App(url, schema=schema)
    wanted = options.get("tasks") or ["both", "python_only", "work", "tick", "echo", "numbers"]
    for name in wanted:
        if name == "numbers":
            app.batch_task(name=name)(numbers)
        else:
            app.task(name=name)(record)
    return app


def add() -> None:
    with sync.Client(url, schema=schema) as client:
        for job in options["jobs"]:
            if "run_at" in job:
                job["run_at"] = datetime.fromisoformat(job["run_at"])
            client.add_job(job.pop("task"), job.pop("payload", None), **job)


async def work(*, once: bool) -> None:
    settings = WorkerOptions(
        schema=schema,
        concurrency=options.get("concurrency", 1),
        forbidden_flags=options.get("forbidden_flags", ()),
    )
    if options.get("looks_often", False):
        often = timedelta(seconds=0.2)
        settings = replace(
            settings,
            recovery=RecoveryOptions(rescue_interval=often),
            min_reset_locked_interval=often,
            max_reset_locked_interval=often,
        )
    app = build_app()
    if once:
        await app.worker(options=settings).run_once()
        return
    runner = await run(url, app, crontab=options.get("crontab"), options=settings)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await runner.wait()


if __name__ == "__main__":
    match sys.argv[1]:
        case "install":
            with sync.Client(url, schema=schema) as installing:
                installing.migrate()
        case "add":
            add()
        case command:
            asyncio.run(work(once=command == "once"))
