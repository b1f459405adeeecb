"""A Python worker: python fleet.py <dsn> <schema> <concurrency>."""

import asyncio
import sys

from graphile_worker import App, JobContext, WorkerOptions, run


async def main(dsn: str, schema: str, concurrency: int) -> None:
    app = App(dsn, schema=schema)

    async def record(ctx: JobContext, fail_first: bool = False) -> None:
        if fail_first and ctx.job.attempts == 1:
            raise ValueError("not the first time")
        await ctx.query(
            "insert into ran (job, attempt, language) values (%s, %s, 'python')",
            (ctx.job.id, ctx.job.attempts),
        )

    app.task(name="both")(record)
    app.task(name="python_only")(record)
    options = WorkerOptions(schema=schema, concurrency=concurrency)
    runner = await run(dsn, app, options=options)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await runner.wait()


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
